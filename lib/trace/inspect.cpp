#include "trace/inspect.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "core/value_range.hpp"

namespace kvbench {

namespace {

void append_norms(const Matrix& m, std::vector<double>& out) {
  for (Index i = 0; i < m.rows(); ++i) {
    const float* row = m.row(i);
    double sum = 0;
    for (Index j = 0; j < m.cols(); ++j) {
      sum += static_cast<double>(row[j]) * static_cast<double>(row[j]);
    }
    out.push_back(std::sqrt(sum));
  }
}

NormRange extract_range(std::vector<double>& norms) {
  const auto [low, high] = std::minmax_element(norms.begin(), norms.end());
  NormRange range{*low, 0, *high};
  const auto middle = norms.begin() + static_cast<std::ptrdiff_t>((norms.size() - 1) / 2);
  std::nth_element(norms.begin(), middle, norms.end());
  range.median = *middle;
  norms.clear();
  return range;
}

}  // namespace

void validate_values(const TraceReader& reader, const HeadCallback& on_head) {
  const std::vector<PromptMeta>& prompts = reader.meta().prompts;
  HeadVisit visit;
  for (const PromptMeta& prompt : prompts) {
    for (const LayerMeta& layer : prompt.layers) {
      visit.total += static_cast<std::size_t>(layer.kv_heads);
    }
  }
  for (visit.prompt = 0; visit.prompt < prompts.size(); ++visit.prompt) {
    reader.read_token_ids(visit.prompt);
    const std::vector<LayerMeta>& layers = prompts[visit.prompt].layers;
    for (visit.layer = 0; visit.layer < layers.size(); ++visit.layer) {
      for (visit.kv_head = 0; visit.kv_head < layers[visit.layer].kv_heads; ++visit.kv_head) {
        const KvHead head = reader.read_head(visit.prompt, visit.layer, visit.kv_head);
        reader.read_o_proj(visit.prompt, visit.layer, visit.kv_head);
        for (const ExtraSetInfo& set : layers[visit.layer].extra) {
          reader.read_extra(visit.prompt, visit.layer, set.name, visit.kv_head);
        }
        for (const ScoresInfo& scores : layers[visit.layer].scores) {
          reader.read_scores(visit.prompt, visit.layer, scores.name, visit.kv_head);
        }
        if (visit.kv_head == 0) {
          reader.read_rope(visit.prompt, visit.layer);
          reader.read_residual_norm(visit.prompt, visit.layer);
        }
        ++visit.done;
        if (on_head) {
          on_head(visit, head);
        }
      }
    }
  }
}

std::vector<std::vector<LayerNorms>> measure_norms(
    const TraceReader& reader, const std::function<void(const HeadVisit&)>& progress) {
  const TraceMeta& meta = reader.meta();
  std::vector<std::vector<LayerNorms>> result(meta.prompts.size());
  std::vector<double> keys;
  std::vector<double> queries;
  std::vector<double> values;
  ValueRange range;
  validate_values(reader, [&](const HeadVisit& visit, const KvHead& head) {
    append_norms(head.k, keys);
    range = widest(range, value_range(head));
    if (head.dv() > 0) {
      append_norms(head.v, values);
    }
    for (const Matrix& q : head.q) {
      append_norms(q, queries);
    }
    const LayerMeta& layer = meta.prompts[visit.prompt].layers[visit.layer];
    if (visit.kv_head == layer.kv_heads - 1) {
      LayerNorms& norms = result[visit.prompt].emplace_back();
      norms.keys = extract_range(keys);
      norms.in_float32 = fits_float32(std::exchange(range, {}), layer.scale, layer.d);
      if (layer.has(LayerTensor::queries)) {
        norms.queries = extract_range(queries);
      }
      if (layer.has(LayerTensor::values)) {
        norms.values = extract_range(values);
      }
    }
    if (progress) {
      progress(visit);
    }
  });
  return result;
}

}  // namespace kvbench
