#include "algorithms/shared/halving.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvbench {
namespace {

using Signs = std::span<const std::int8_t>;

// First place at which `sign` has occurred `count` times, or -1.
Index place_of_count(Signs signs, std::int8_t sign, Index count) {
  Index seen = 0;
  for (std::size_t i = 0; i < signs.size(); ++i) {
    seen += signs[i] == sign ? 1 : 0;
    if (signs[i] == sign && seen == count) {
      return static_cast<Index>(i);
    }
  }
  return -1;
}

// Up to and including c, drops sign `dropped` and doubles the other.
std::vector<Survivor> cut_at(Signs signs, Index c, std::int8_t dropped) {
  std::vector<Survivor> out;
  for (Index i = 0; i < static_cast<Index>(signs.size()); ++i) {
    if (i > c) {
      out.push_back({i, 1.0});
    } else if (signs[i] != dropped) {
      out.push_back({i, 2.0});
    }
  }
  return out;
}

std::vector<Survivor> weighted(Signs signs) {
  const auto m = static_cast<Index>(signs.size());
  const Index majority = m - m / 2;  // exactly one sign reaches it, as 2 ceil(m/2) >= m
  const Index plus = place_of_count(signs, 1, majority);
  const Index minus = place_of_count(signs, -1, majority);
  // Both reach it only if m is even and signs are balanced; the first wins.
  const bool drop_plus = plus >= 0 && (minus < 0 || plus < minus);
  return cut_at(signs, drop_plus ? plus : minus, drop_plus ? std::int8_t{1} : std::int8_t{-1});
}

std::vector<Survivor> repo(Signs signs) {
  const auto m = static_cast<Index>(signs.size());
  const Index half = m / 2;
  if (half == 0) {
    return {};
  }
  // The sign at the later place is dropped up to there; a sign that never reaches half counts as
  // place 0. For odd m one survivor too many is left and the order decides.
  const Index c =
      std::max({Index{0}, place_of_count(signs, 1, half), place_of_count(signs, -1, half)});
  std::vector<Survivor> out = cut_at(signs, c, signs[c]);
  std::stable_sort(out.begin(), out.end(),
                   [](const Survivor& a, const Survivor& b) { return a.factor > b.factor; });
  out.resize(half);
  return out;
}

std::vector<Survivor> strict(Signs signs, Fill fill, RngStream& stream) {
  const auto m = static_cast<Index>(signs.size());
  const auto plus = static_cast<Index>(std::count(signs.begin(), signs.end(), std::int8_t{1}));
  const std::int8_t minority = plus <= m - plus ? std::int8_t{1} : std::int8_t{-1};
  std::vector<bool> kept(signs.size());
  std::vector<Index> majority;
  for (std::size_t i = 0; i < signs.size(); ++i) {
    kept[i] = signs[i] == minority;
    if (!kept[i]) {
      majority.push_back(static_cast<Index>(i));
    }
  }
  const auto others = static_cast<Index>(majority.size());
  const Index missing = m / 2 - (m - others);
  if (fill == Fill::order) {
    for (Index i = 0; i < missing; ++i) {
      kept[majority[i]] = true;
    }
  } else {
    for (const Index i : sample_without_replacement(stream, others, missing)) {
      kept[majority[i]] = true;
    }
  }
  std::vector<Survivor> out;
  for (std::size_t i = 0; i < signs.size(); ++i) {
    if (kept[i]) {
      out.push_back({static_cast<Index>(i), 2.0});
    }
  }
  return out;
}

}  // namespace

std::vector<Survivor> halve(Signs signs, Select select, Fill fill, Index block,
                            RngStream& fill_stream) {
  if (select == Select::weighted || select == Select::repo) {
    return select == Select::repo ? repo(signs) : weighted(signs);
  }
  std::vector<Survivor> out;
  const auto m = static_cast<Index>(signs.size());
  block = select == Select::strict ? std::max<Index>(1, m) : block;
  for (Index b = 0; b < m; b += block) {
    const Index count = std::min(block, m - b);
    for (Survivor s :
         strict(signs.subspan(b, static_cast<std::size_t>(count)), fill, fill_stream)) {
      s.place += b;
      out.push_back(s);
    }
  }
  return out;
}

std::vector<ParamSpec> walk_params(std::string step_doc, const std::string& block) {
  return {
      choice_param("step", {"greedy", "self", "fixed", "theory", "repo"}, std::move(step_doc)),
      real_param("gamma", "auto", 0, 1e300, "",
                 "strength of the walk for fixed, self, repo; auto: 4 for repo, else 1; 0: a coin"),
      real_param("failure", "0.01", 1e-300, 1, "",
                 fmt::format("failure probability of step=theory, c = 30 ln({}/failure)", block)),
  };
}

WalkOptions walk_options(const KvHead& head, const Params& p) {
  WalkOptions out;
  out.step = p.choice<WalkStep>("step", {{"greedy", WalkStep::greedy},
                                         {"self", WalkStep::self},
                                         {"fixed", WalkStep::fixed},
                                         {"theory", WalkStep::theory},
                                         {"repo", WalkStep::repo}});
  out.gamma = p.is_auto("gamma") ? (out.step == WalkStep::repo ? 4.0 : 1.0) : p.real("gamma");
  out.failure = p.real("failure");
  out.scale = head.scale * p.real("temp");
  out.center = p.text("center") != "none";
  return out;
}

Fill fill_of(const Params& params) {
  return params.text("fill") == "order" ? Fill::order : Fill::random;
}

Figures walk_figures(const WalkCounts& counts) {
  const auto steps = static_cast<double>(std::max<std::int64_t>(1, counts.steps));
  return {{"failures", fmt::format("{}", counts.failures)},
          {"saturated", fmt::format("{:.6g}", static_cast<double>(counts.saturated) / steps)},
          {"coin", fmt::format("{:.6g}", static_cast<double>(counts.coin) / steps)}};
}

}  // namespace kvbench
