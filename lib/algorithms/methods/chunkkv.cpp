// chunkkv: whole chunks of neighbouring tokens with the largest mean SnapKV score.
// [1] Liu et al., "ChunkKV: Semantic-Preserving KV Cache Compression for Efficient Long-Context LLM
//     Inference", NeurIPS 2025, arXiv:2502.00299, section 3.
// [2] ChunkKVPress of kvpress 8bb29b9, presses/chunkkv_press.py, the public implementation.
// The task's tokens are cut into chunks of `chunk_length`; a shorter last chunk has the mean of its
// own tokens, as in [2]. Chunks are kept whole by mean score, ties to the earlier one. Of the first
// that does not fit, the largest scores fill B, ties to the lowest position.
// In: SnapKV's scores [m] of the task's tokens. Out: B tokens of weight 1. float64, fixed order.
// Time O(m kernel + m log m) beside the scores.
#include <algorithm>

#include "algorithms/shared/size.hpp"
#include "algorithms/shared/snapkv_scores.hpp"

namespace kvbench::method_chunkkv {
namespace {

// Of at least one score. Sums differences from the first, so that the mean of equal scores is
// exact.
double mean_of(std::span<const double> scores) {
  double sum = 0.0;
  for (const double x : scores) {
    sum += x - scores.front();
  }
  return scores.front() + sum / static_cast<double>(scores.size());
}

Compressed compress(const Task& task, const Params& params) {
  const std::vector<double> scores = snapkv_scores(task, params);
  const auto length = static_cast<std::size_t>(
      std::clamp<Index>(params.integer("chunk_length"), 1, std::max<Index>(1, task.count())));
  std::vector<double> means;
  means.reserve((scores.size() + length - 1) / length);
  for (std::size_t begin = 0; begin < scores.size(); begin += length) {
    means.push_back(
        mean_of(std::span(scores).subspan(begin, std::min(length, scores.size() - begin))));
  }
  const std::vector<std::uint32_t> order = best_first(means);

  Index left = pairs_to_keep(task, params);
  std::vector<Index> kept;
  kept.reserve(static_cast<std::size_t>(left));
  Index whole = 0;
  for (std::size_t i = 0; left > 0; ++i) {
    const std::size_t begin = order[i] * length;
    const std::size_t size = std::min(length, scores.size() - begin);
    const Index take = std::min(left, static_cast<Index>(size));
    append_all(kept, keep_top(task.tokens.subspan(begin, size),
                              std::span(scores).subspan(begin, size), take));
    whole += take == static_cast<Index>(size) ? 1 : 0;
    left -= take;
  }
  std::sort(kept.begin(), kept.end());
  Compressed out;
  out.held.tokens = std::move(kept);
  out.diag = {{"chunks", std::to_string(whole)}};
  return out;
}

}  // namespace

Method make() {
  MethodInfo info = snapkv_info(
      "chunkkv", {integer_param("chunk_length", "20", 1, 1e9, "tokens",
                                "neighbouring tokens that are kept or dropped together; larger "
                                "keeps longer stretches of text; 1: snapkv")});
  info.family = Family::eviction;
  info.summary = "SnapKV's scores, averaged over chunks that are kept whole";
  info.source = "Liu et al., NeurIPS 2025, arXiv:2502.00299, section 3";
  info.departures =
      "the last chunk keeps only its best tokens, so that the budget is met (kvpress: whole "
      "chunks, more or fewer tokens); one set per KV head (kvpress: per layer); indices are not "
      "reused over layers; SnapKV's departures";
  info.grid = {"chunk_length=5,10,20;window=32,256;kernel=1,5"};
  return {info, compress};
}

}  // namespace kvbench::method_chunkkv
