#include "algorithms/shared/ranked_reads.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "algorithms/shared/size.hpp"

namespace kvbench {
namespace {

RankedEntries ranks_of(std::vector<std::uint32_t> order) {
  RankedEntries out{std::move(order), {}};
  out.levels.resize(out.entries.size());
  std::iota(out.levels.begin(), out.levels.end(), 0.0);
  return out;
}

class RankedReads : public ReadIndex {
 public:
  RankedReads(const Task& task, const Params& params, std::string_view size, ScoredIndex index)
      : task_(task), unions_(reads_unions(params)), index_(std::move(index)) {
    const ReadCosts& costs = index_.costs;
    if (index_.rows.empty()) {
      index_.rows.resize(static_cast<std::size_t>(costs.entries));
      std::iota(index_.rows.begin(), index_.rows.end(), Index{0});
    }
    if (!params.is_auto(size)) {
      count_ = std::min(costs.entries, params.integer(size));
      return;
    }
    const Index budget = given_budget(task.budget_bytes, fmt::format("{}=", size));
    check_least(task, costs);
    bounded_ = true;
    count_ = std::min(costs.entries, (budget - costs.index_bytes) / costs.entry_bytes);
  }

  Reads search() override {
    Reads out;
    out.index_bytes = index_.costs.index_bytes;
    out.diag = index_.diag;
    const ReadCosts& costs = index_.costs;
    const Index m = task_.evaluated.size();
    out.lists.queries = m;
    out.lists.shared = unions_;
    std::vector<RankedEntries> lists;  // for unions: by head, then query
    std::vector<Index> last_rank;      // of the last entry, which may be short
    for (Index g = 0; g < task_.head.group(); ++g) {
      visit_products(queries(g), of(), index_.rows, task_.head.precision,
                     [&](Index, std::span<const double> scores) {
                       RankedEntries list = ranks_of(best_first(scores, count_));
                       last_rank.push_back(std::ranges::find(list.entries, costs.entries - 1) -
                                           list.entries.begin());
                       if (unions_) {
                         lists.push_back(std::move(list));
                       } else {
                         add_tokens(list, count_, out);
                       }
                     });
    }
    Index count = count_;
    if (unions_) {
      std::vector<RankedEntries> unions;
      for (Index j = 0; j < m; ++j) {
        unions.push_back(union_of(lists, j, m));
        for (Index g = 0; g < task_.head.group(); ++g) {
          lists[g * m + j] = {};  // frees its memory
        }
      }
      count = bounded_ ? largest_count(unions) : count_;
      for (const RankedEntries& list : unions) {
        add_tokens(list, count, out);
      }
    }
    const Index missing = costs.entries * costs.page - task_.count();
    for (const Index rank : last_rank) {
      out.asked.push_back(count * costs.page - (rank < count ? missing : 0));
    }
    return out;
  }

 private:
  MatrixD queries(Index g) const {
    return index_.queries ? index_.queries(g)
                          : scaled_queries(task_.head, g, task_.evaluated.size());
  }

  MatrixView of() const { return index_.made.rows() > 0 ? index_.made.view() : index_.of; }

  void add_tokens(const RankedEntries& list, Index count, Reads& out) const {
    out.lists.tokens.push_back(
        tokens_below(list, static_cast<double>(count), index_.costs.page, task_.tokens));
  }

  Index largest_count(std::span<const RankedEntries> unions) const {
    const ReadCosts& costs = index_.costs;
    const auto m = static_cast<Index>(unions.size());
    const auto bytes = [&](Index count) {
      return m * costs.index_bytes +
             count_below(unions, static_cast<double>(count)) * costs.entry_bytes;
    };
    const Index least = std::min(costs.least, costs.entries);
    if (bytes(least) > m * *task_.budget_bytes) {
      refuse_budget((bytes(least) + m - 1) / m, *task_.budget_bytes,
                    "unions of the group's heads need");
    }
    Index fits = least;
    for (Index beyond = count_ + 1; beyond - fits > 1;) {
      const Index middle = fits + (beyond - fits) / 2;
      (bytes(middle) <= m * *task_.budget_bytes ? fits : beyond) = middle;
    }
    return fits;
  }

  Task task_;
  bool unions_;
  ScoredIndex index_;
  bool bounded_ = false;
  Index count_ = 0;  // entries of a query
};

}  // namespace

ParamSpec union_param() {
  return choice_param("union", {"head", "group"},
                      "head: a query head reads what it asked for; group: all heads of the group "
                      "ask for equally much and read what any of them asked for");
}

bool reads_unions(const Params& params) {
  return params.text("union") == "group";
}

std::size_t RankedEntries::count_below(double limit) const {
  return static_cast<std::size_t>(std::ranges::lower_bound(levels, limit) - levels.begin());
}

Index count_below(std::span<const RankedEntries> lists, double limit) {
  Index count = 0;
  for (const RankedEntries& list : lists) {
    count += static_cast<Index>(list.count_below(limit));
  }
  return count;
}

RankedEntries union_of(std::span<const RankedEntries> lists, Index query, Index queries) {
  std::vector<std::pair<double, std::uint32_t>> all;
  for (auto at = static_cast<std::size_t>(query); at < lists.size();
       at += static_cast<std::size_t>(queries)) {
    const RankedEntries& list = lists[at];
    for (std::size_t i = 0; i < list.entries.size(); ++i) {
      all.emplace_back(list.levels[i], list.entries[i]);
    }
  }
  std::ranges::sort(all, [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second < b.second : a.first < b.first;
  });
  all.erase(std::unique(all.begin(), all.end(),
                        [](const auto& a, const auto& b) { return a.second == b.second; }),
            all.end());
  std::ranges::sort(all);
  RankedEntries out;
  out.levels.reserve(all.size());
  out.entries.reserve(all.size());
  for (const auto& [level, entry] : all) {
    out.levels.push_back(level);
    out.entries.push_back(entry);
  }
  return out;
}

std::vector<std::uint32_t> tokens_below(const RankedEntries& list, double limit, Index page,
                                        std::span<const Index> tokens) {
  std::vector<std::uint32_t> entries(list.entries.begin(),
                                     list.entries.begin() + list.count_below(limit));
  std::ranges::sort(entries);
  std::vector<std::uint32_t> out;
  out.reserve(entries.size() * static_cast<std::size_t>(page));
  for (const std::uint32_t entry : entries) {
    const auto begin = static_cast<Index>(entry) * page;
    const Index end = std::min(begin + page, static_cast<Index>(tokens.size()));
    for (Index i = begin; i < end; ++i) {
      out.push_back(static_cast<std::uint32_t>(tokens[i]));
    }
  }
  return out;
}

void check_least(const Task& task, const ReadCosts& costs) {
  const Index needed = costs.index_bytes + std::min(costs.least, costs.entries) * costs.entry_bytes;
  if (task.budget_bytes && *task.budget_bytes < needed) {
    refuse_budget(needed, *task.budget_bytes,
                  fmt::format("index of {} bytes and the fewest reads need", costs.index_bytes));
  }
}

double largest_limit(const Task& task, Index queries, double highest,
                     const std::function<Index(double limit)>& bytes, std::string_view least) {
  const auto fits = [&](double limit) { return bytes(limit) <= queries * *task.budget_bytes; };
  if (fits(highest)) {
    return highest;
  }
  double low = std::numeric_limits<double>::denorm_min();
  if (!fits(low)) {
    refuse_budget((bytes(low) + queries - 1) / queries, *task.budget_bytes, least);
  }
  for (double middle = highest / 2; low < middle && middle < highest;
       middle = low + (highest - low) / 2) {
    (fits(middle) ? low : highest) = middle;
  }
  return low;
}

std::unique_ptr<ReadIndex> ranked_reads(const Task& task, const Params& params,
                                        std::string_view size, ScoredIndex index) {
  return std::make_unique<RankedReads>(task, params, size, std::move(index));
}

}  // namespace kvbench
