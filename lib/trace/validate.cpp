#include "trace/validate.hpp"

#include <algorithm>

namespace kvbench {

namespace {

template <typename T>
bool selected(const std::optional<std::vector<T>>& list, T value) {
  return !list || std::find(list->begin(), list->end(), value) != list->end();
}

}  // namespace

std::size_t validate_values(const TraceReader& reader, const TraceSelection& selection,
                            const HeadCallback& on_head) {
  const TraceMeta& meta = reader.meta();
  std::vector<HeadVisit> visits;
  for (std::size_t p = 0; p < meta.prompts.size(); ++p) {
    const auto& layers = meta.prompts[p].layers;
    for (std::size_t l = 0; l < layers.size(); ++l) {
      for (Index h = 0; h < layers[l].kv_heads; ++h) {
        if (selected(selection.prompts, p) && selected(selection.layers, layers[l].layer) &&
            selected(selection.kv_heads, h)) {
          visits.push_back({p, l, h, 0, 0});
        }
      }
    }
  }
  for (std::size_t i = 0; i < visits.size(); ++i) {
    HeadVisit& visit = visits[i];
    visit.done = i + 1;
    visit.total = visits.size();
    const KvHead head = reader.read_head(visit.prompt, visit.layer, visit.kv_head);
    reader.read_o_proj(visit.prompt, visit.layer, visit.kv_head);
    if (visit.kv_head == 0) {
      reader.read_rope(visit.prompt, visit.layer);
      reader.read_residual_norm(visit.prompt, visit.layer);
    }
    if (on_head) {
      on_head(visit, head);
    }
  }
  return visits.size();
}

}  // namespace kvbench
