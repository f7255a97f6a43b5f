// topp: each query reads the fewest tokens of the middle that have the share p of the middle's
// attention, its heaviest first, so that flat queries read more. No index.
// At a budget p is the largest for which the mean over a head's queries fits.
// In: K [m, d], the evaluated queries. Time O(group queries m (d + log m)), memory O(queries m).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "algorithms/shared/ranked_reads.hpp"
#include "algorithms/shared/size.hpp"
#include "core/math.hpp"

namespace kvbench::method_topp {
namespace {

// Entries by falling weight, ties to the first. Level: the share of the entries before, so that a
// query that reads the levels below p has the share p.
RankedEntries shares_of(std::span<const double> logits) {
  RankedEntries out{best_first(logits), {}};
  const double shift = logits[out.entries.front()];
  double total = 0.0;
  for (const double x : logits) {
    total += exp_shared(x - shift);
  }
  double before = 0.0;
  out.levels.reserve(logits.size());
  for (const std::uint32_t entry : out.entries) {
    out.levels.push_back(before / total);
    before += exp_shared(logits[entry] - shift);
  }
  return out;
}

class ByMass : public ReadIndex {
 public:
  ByMass(const Task& task, const Params& params) : task_(task), unions_(reads_unions(params)) {
    if (!params.is_auto("p")) {
      p_ = params.real("p");
      return;
    }
    given_budget(task.budget_bytes, "p=");
    check_least(task, {.entries = task.count(), .entry_bytes = task.read_bytes()});
  }

  Reads search() override {
    const KvHead& head = task_.head;
    const Index m = task_.evaluated.size();
    Reads out;
    out.lists.queries = m;
    out.lists.shared = unions_;
    std::vector<RankedEntries> lists;  // of a head; for unions of all, by head, then query
    std::string limits;
    for (Index g = 0; g < head.group(); ++g) {
      visit_products(
          scaled_queries(head, g, m), head.k, task_.tokens, head.precision,
          [&](Index, std::span<const double> logits) { lists.push_back(shares_of(logits)); });
      if (!unions_) {
        const double limit = fit(lists);
        limits += fmt::format("{}{:.6g}", g == 0 ? "" : "/", limit);
        add(lists, limit, out);
        add_asked(lists, limit, out);
        lists.clear();
      }
    }
    if (unions_) {
      std::vector<RankedEntries> unions;
      for (Index j = 0; j < m; ++j) {
        unions.push_back(union_of(lists, j, m));
      }
      const double limit = fit(unions);
      limits = fmt::format("{:.6g}", limit);
      add(unions, limit, out);
      add_asked(lists, limit, out);
    }
    out.diag = {{"p", limits}};
    return out;
  }

 private:
  // The largest share that fits in the mean; the parameter's without a budget.
  double fit(std::span<const RankedEntries> lists) const {
    if (p_) {
      return *p_;
    }
    return largest_limit(
        task_, static_cast<Index>(lists.size()), 1.0,
        [&](double limit) { return count_below(lists, limit) * task_.read_bytes(); },
        "the first token of every query head needs");
  }

  void add(std::span<const RankedEntries> lists, double limit, Reads& out) const {
    for (const RankedEntries& list : lists) {
      out.lists.tokens.push_back(tokens_below(list, limit, 1, task_.tokens));
    }
  }

  static void add_asked(std::span<const RankedEntries> lists, double limit, Reads& out) {
    for (const RankedEntries& list : lists) {
      out.asked.push_back(static_cast<Index>(list.count_below(limit)));
    }
  }

  Task task_;
  bool unions_;
  std::optional<double> p_;
};

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "topp";
  info.family = Family::retrieval;
  info.matrix_bytes = [](const Params& p, const LayerFacts& l, Index) {
    return 12 * l.n * l.evaluated * (p.text("union") == "group" ? l.group + 1 : 1);
  };
  info.summary = "each query reads the fewest tokens with a share p of the middle's attention";
  info.source = "kvbench";
  info.params = {real_param("p", "auto", 0.001, 1, "",
                            "share of the middle's attention that a query reads (0.9, say), in "
                            "place of a budget, which chooses the largest that fits"),
                 union_param()};
  info.sizes = {"p"};
  info.grid = {"union=head,group"};
  return {.info = info, .open_reads = open_reads_as<ByMass>};
}

}  // namespace kvbench::method_topp
