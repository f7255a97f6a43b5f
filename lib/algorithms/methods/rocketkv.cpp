// rocketkv: SnapKV keeps a share of the tokens; of these each query of a group of heads reads the
// tokens of the best pages, by bounds of their logits over a few channels.
// [1] Behnam et al., "RocketKV: Accelerating Long-Context LLM Inference via Two-Stage KV Cache
//     Compression", ICML 2025, arXiv:2502.14051.
// [2] Its code, NVlabs/RocketKV 63637c8: infllm_utils.py and attention/rocket.py in
//     pipeline/inf_stream_llm, gpt-fast/rocket.py.
// With a budget of T tokens (tokens=B: 2 B) and c = m / T, stage 1 keeps m / c^a, a = min(0.2 +
// 0.06 log2 c, 0.8), by SnapKV's scores. With r = kept / T, pages have min(floor(r), ceil(sqrt(r)))
// of the kept tokens, in order, and floor(d page / r) channels count, so that the index takes half
// of the bytes. Stage 2: page_bounds.hpp. All heads of the group read the same B tokens, the last
// page's first ones if not all of it.
// Index: each channel's maximum and minimum over a page; for pages of one token a copy of the keys.
// A query reads one element of each channel that counts of each page.
// In: K [m, d], the scoring and the evaluated queries. Time O(group queries m d / page).
#include <algorithm>
#include <cmath>

#include "algorithms/shared/page_bounds.hpp"
#include "algorithms/shared/ranked_reads.hpp"
#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/size.hpp"
#include "algorithms/shared/snapkv_scores.hpp"

namespace kvbench::method_rocketkv {
namespace {

// `budget`: T.
GroupPages pages_of(const Params& params, Index m, Index d, Index budget) {
  GroupPages out;
  const double ratio = static_cast<double>(m) / static_cast<double>(std::min(m, budget));
  const double power = std::min(0.2 + 0.06 * std::log2(ratio), 0.8);
  out.tokens = params.is_auto("share")
                   ? static_cast<Index>(static_cast<double>(m) / std::pow(ratio, power))
                   : floor_share(params.real("share"), m);
  out.tokens = std::clamp<Index>(out.tokens, 1, m);
  const Index least = std::min(out.tokens, budget);  // r = out.tokens / least
  Index root = 1;
  while (root * root * least < out.tokens) {
    ++root;
  }
  out.page = params.is_auto("page") ? std::min(out.tokens / least, root) : params.integer("page");
  out.channels =
      params.is_auto("channels") ? d * out.page * least / out.tokens : params.integer("channels");
  out.channels = std::clamp<Index>(out.channels, 1, d);
  return out;
}

class RocketReads : public ReadIndex {
 public:
  RocketReads(const Task& task, const Params& params) : task_(task) {
    const Index d = task.head.d();
    const Index element = bytes_per_element(task.head.dtype);
    const bool bounded = params.is_auto("tokens");
    count_ = bounded ? given_budget(task.budget_bytes, "tokens=") / task.head.pair_bytes()
                     : params.integer("tokens");
    pages_ = pages_of(params, task.count(), d, std::max<Index>(1, bounded ? count_ : 2 * count_));
    index_bytes_ = pages_.pages() * d * element * (pages_.page > 1 ? 2 : 1);
    index_read_ = pages_.pages() * pages_.channels * element;
    if (bounded) {
      check_least(task,
                  {.entries = 1, .entry_bytes = task.read_bytes(), .index_bytes = index_read_});
      count_ = (*task.budget_bytes - index_read_) / task.read_bytes();
    }
    count_ = std::min(count_, pages_.tokens);
    kept_ = keep_top(task.tokens, snapkv_scores(task, params), pages_.tokens);
    extremes_ = page_extremes(task.head.k, kept_, pages_.page);
  }

  Reads search() override {
    const Index m = task_.evaluated.size();
    Reads out;
    out.lists = {.queries = m, .shared = true};
    out.asked.assign(static_cast<std::size_t>(task_.head.group() * m), count_);
    out.index_bytes = index_bytes_;
    out.index_read = index_read_;
    out.diag = {{"stage1", std::to_string(pages_.tokens)},
                {"page", std::to_string(pages_.page)},
                {"channels", std::to_string(pages_.channels)}};
    visit_group_scores(task_.head, m, extremes_, pages_, [&](const std::vector<double>& scores) {
      out.lists.tokens.push_back(best_tokens(scores));
    });
    return out;
  }

 private:
  std::vector<std::uint32_t> best_tokens(const std::vector<double>& scores) const {
    std::vector<std::uint32_t> out;
    const Index pages = std::min(pages_.pages(), count_ / pages_.page + 2);  // one may be short
    for (const std::uint32_t page : best_first(scores, pages)) {
      const Index begin = page * pages_.page;
      const Index end = std::min(
          {begin + pages_.page, pages_.tokens, begin + count_ - static_cast<Index>(out.size())});
      out.insert(out.end(), kept_.begin() + begin, kept_.begin() + end);
    }
    std::ranges::sort(out);
    return out;
  }

  Task task_;
  GroupPages pages_;
  Index count_ = 0, index_bytes_ = 0, index_read_ = 0;
  std::vector<Index> kept_;
  Matrix extremes_;
};

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "rocketkv";
  info.family = Family::retrieval;
  info.summary = "each query reads pages of what SnapKV keeps, by bounds over a few channels";
  info.source = "Behnam et al., ICML 2025, arXiv:2502.14051; NVlabs/RocketKV 63637c8";
  info.departures =
      "both stages are of the middle alone, softmax and pages too (the code: of the whole cache, "
      "with SnapKV's window); every layer retrieves; tokens read use what the index leaves of the "
      "budget (the code: half of it)";
  info.params = {
      integer_param("tokens", "auto", 1, 1e12, "tokens",
                    "tokens of the middle that a query reads, in place of a budget"),
      real_param("share", "auto", 0, 1, "",
                 "share of the middle that stage 1 keeps; auto: by the budget"),
      integer_param("page", "auto", 1, 1e6, "tokens",
                    "tokens of a page; larger makes a smaller index and coarser reads"),
      integer_param("channels", "auto", 1, 1e6, "channels",
                    "channels of a query that count; more make a closer bound and larger reads"),
      integer_param("window", "32", 1, 1e9, "queries",
                    "how many of the last scoring queries stage 1 scores with"),
      integer_param("kernel", "63", 1, 1e6, "tokens",
                    "width of the pooling over neighbouring positions; odd; larger keeps whole "
                    "stretches of text"),
      choice_param("pool", {"max", "avg"}, "pooling over the kernel, padding not counted"),
      reduce_param()};
  info.sizes = {"tokens"};
  info.grid = {"share=auto,0.25,0.5,1", "page=1,4;channels=auto,16", "pool=avg;kernel=5"};
  info.facts = snapkv_facts;
  info.matrix_bytes = [](const Params&, const LayerFacts& l, Index) {
    return 24 * l.group * l.evaluated * l.d + (8 * kReadBlock + 24 * l.group) * l.n;
  };
  return {.info = info, .open_reads = open_reads_as<RocketReads>};
}

}  // namespace kvbench::method_rocketkv
