#include "reference/shard_costs.hpp"

#include <algorithm>
#include <cmath>
#include <set>

namespace kvbench::reference {
namespace {

double middle(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return (x[(x.size() - 1) / 2] + x[x.size() / 2]) / 2.0;
}

using Medians = std::map<Index, std::map<Index, double>>;  // by setting and tokens

Medians medians_of(const std::vector<TimedRow>& rows, Index q_heads) {
  std::map<Index, std::map<Index, std::vector<double>>> all;
  for (const TimedRow& r : rows) {
    all[r.setting][r.tokens].push_back(r.compress_ms / 1e3 +
                                       static_cast<double>(q_heads * r.queries) *
                                           r.attend_us_per_query / 1e6);
  }
  Medians out;
  for (const auto& [setting, by_tokens] : all) {
    for (const auto& [tokens, times] : by_tokens) {
      out[setting][tokens] = middle(times);
    }
  }
  return out;
}

// What is left of log t = a + p log n over these settings, where each has the best a of its own.
double misfit(const Medians& medians, const std::set<Index>& settings, double p) {
  double out = 0.0;
  for (const Index s : settings) {
    std::vector<double> rest;
    double sum = 0.0;
    for (const auto& [tokens, time] : medians.at(s)) {
      if (time > 0.0) {
        rest.push_back(std::log(time) - p * std::log(static_cast<double>(tokens)));
        sum += rest.back();
      }
    }
    for (const double r : rest) {
      const double away = r - sum / static_cast<double>(rest.size());
      out += away * away;
    }
  }
  return out;
}

double exponent(const Medians& medians, const std::set<Index>& settings) {
  if (std::none_of(settings.begin(), settings.end(), [&](Index s) {
        return std::count_if(medians.at(s).begin(), medians.at(s).end(),
                             [](const auto& m) { return m.second > 0.0; }) > 1;
      })) {
    return 1.0;
  }
  double low = 0.0;
  double high = 3.0;
  for (int step = 0; step < 200; ++step) {
    const double a = low + (high - low) / 3.0;
    const double b = high - (high - low) / 3.0;
    (misfit(medians, settings, a) < misfit(medians, settings, b) ? high : low) =
        misfit(medians, settings, a) < misfit(medians, settings, b) ? b : a;
  }
  return low;
}

}  // namespace

std::vector<double> job_seconds(const std::vector<TimedRow>& rows,
                                const std::map<Index, std::string>& algorithm_of,
                                const std::vector<TimedJob>& jobs) {
  std::vector<double> out;
  for (const TimedJob& job : jobs) {
    const Medians medians = medians_of(rows, job.q_heads);
    const auto seconds = [&](Index setting) {
      std::set<Index> alike;
      for (const auto& [other, by_tokens] : medians) {
        if (algorithm_of.at(other) == algorithm_of.at(setting)) {
          alike.insert(other);
        }
      }
      Index nearest = 0;
      double least = 1e300;
      for (const auto& [tokens, time] : medians.at(setting)) {
        const double away =
            std::abs(std::log(static_cast<double>(job.tokens) / static_cast<double>(tokens)));
        if (away < least) {
          least = away;
          nearest = tokens;
        }
      }
      return medians.at(setting).at(nearest) *
             std::pow(static_cast<double>(job.tokens) / static_cast<double>(nearest),
                      exponent(medians, alike));
    };
    if (medians.count(job.setting) > 0) {
      out.push_back(seconds(job.setting));
      continue;
    }
    std::vector<double> others;
    for (const auto& [setting, by_tokens] : medians) {
      others.push_back(seconds(setting));
    }
    out.push_back(middle(others));
  }
  return out;
}

std::vector<Index> equal_parts(const std::vector<Index>& nanoseconds, Index count) {
  std::vector<Index> before{0};
  for (const Index ns : nanoseconds) {
    before.push_back(before.back() + ns);
  }
  std::vector<Index> out{0};
  for (Index i = 1; i < count; ++i) {
    const Index share = before.back() * i / count;
    Index best = 0;
    for (Index job = 0; job < static_cast<Index>(before.size()); ++job) {
      if (std::abs(before[job] - share) < std::abs(before[best] - share)) {
        best = job;
      }
    }
    out.push_back(best);
  }
  out.push_back(static_cast<Index>(nanoseconds.size()));
  return out;
}

}  // namespace kvbench::reference
