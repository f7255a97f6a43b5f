// Selection of prompts, layers and heads from traces, for the plans of replay and cluster.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/types.hpp"
#include "replay/options.hpp"
#include "trace/reader.hpp"

namespace kvbench {

/// Whether `wanted` is empty or contains `x`.
template <class T>
bool selected(const std::vector<T>& wanted, const T& x) {
  return wanted.empty() || std::find(wanted.begin(), wanted.end(), x) != wanted.end();
}

/// Throws InputError unless every element of `wanted` is in `available`.
template <class T>
void check_found(const char* option, const std::vector<T>& wanted, const std::set<T>& available) {
  for (const T& x : wanted) {
    check_input(available.count(x) > 0, fmt::format("{}: no trace has {}, expected some of {}",
                                                    option, x, fmt::join(available, ", ")));
  }
}

/// Opens traces and appends to `readers` and, as file names without folders, to `names`. Throws
/// InputError on duplicate names.
inline void open_traces(const std::vector<std::string>& paths, Require require,
                        std::vector<TraceReader>& readers, std::vector<std::string>& names) {
  for (const std::string& path : paths) {
    readers.emplace_back(path, require);
    const std::string name = std::filesystem::path(path).filename().string();
    check_input(
        std::find(names.begin(), names.end(), name) == names.end(),
        fmt::format("{}: duplicate trace name {}, expected different file names", path, name));
    names.push_back(name);
  }
}

/// Replaces kGlobalLayers or kWindowedLayers, the only element, by the numbers of such layers.
/// Throws InputError if there is none, or if a number has a window in one trace and none in
/// another.
inline void number_layers(const std::vector<TraceReader>& readers, std::vector<Index>& layers) {
  if (layers.empty() || layers.front() >= 0) {
    return;
  }
  const bool windowed = layers.front() == kWindowedLayers;
  const std::string option = fmt::format("--layers {}", windowed ? "windowed" : "global");
  std::set<Index> found;
  std::set<Index> others;
  for (const TraceReader& reader : readers) {
    for (const PromptMeta& prompt : reader.meta().prompts) {
      for (const LayerMeta& layer : prompt.layers) {
        if (!layer.shares_cache_of) {
          ((layer.window.value_or(0) > 0) == windowed ? found : others).insert(layer.layer);
        }
      }
    }
  }
  check_input(!found.empty(), fmt::format("{}: all layers {} a window, expected other layers",
                                          option, windowed ? "are without" : "have"));
  for (const Index x : found) {
    check_input(!others.contains(x),
                fmt::format("{}: layer {} has a window in one trace and none in another, expected "
                            "numbers of layers",
                            option, x));
  }
  layers.assign(found.begin(), found.end());
}

/// Removes numbers of ranges that are not in `available`: only some of a range must be in a trace.
/// Throws InputError if another number is not, or no number of a range is.
inline void restrict_to(const char* option, std::vector<Index>& numbers,
                        const std::vector<Range>& ranges, const std::set<Index>& available) {
  for (const Range& range : ranges) {
    check_input(std::ranges::any_of(
                    numbers, [&](Index x) { return range.contains(x) && available.contains(x); }),
                fmt::format("{}: no trace has any of {}:{}, expected some of {}", option,
                            range.begin, range.end, fmt::join(available, ", ")));
  }
  std::erase_if(numbers, [&](Index x) {
    return available.count(x) == 0 &&
           std::ranges::any_of(ranges, [x](const Range& range) { return range.contains(x); });
  });
  check_found(option, numbers, available);
}

/// Calls visit(trace, prompt, layer, LayerMeta) for every selected layer, with indices. Then
/// removes layers and heads that no trace has from the selected ranges. Throws InputError if
/// another selected prompt, layer or head is in no trace. `head_count`: number of heads of the kind
/// that `heads_option` selects.
template <class Visit>
void for_each_layer(const std::vector<TraceReader>& readers, TraceOptions& o,
                    const char* heads_option, Index LayerMeta::*head_count, const Visit& visit) {
  std::set<std::string> prompts;
  std::set<Index> layers;
  std::set<Index> heads;
  for (std::size_t t = 0; t < readers.size(); ++t) {
    const auto& all = readers[t].meta().prompts;
    for (std::size_t p = 0; p < all.size(); ++p) {
      prompts.insert(all[p].id);
      for (std::size_t l = 0; l < all[p].layers.size(); ++l) {
        const LayerMeta& layer = all[p].layers[l];
        layers.insert(layer.layer);
        for (Index h = 0; h < layer.*head_count; ++h) {
          heads.insert(h);
        }
        if (selected(o.prompts, all[p].id) &&
            (o.layers.empty() ? !layer.shares_cache_of : selected(o.layers, layer.layer))) {
          visit(t, p, l, layer);
        }
      }
    }
  }
  restrict_to("--layers", o.layers, o.layer_ranges, layers);
  restrict_to(heads_option, o.heads, o.head_ranges, heads);
  check_found("--prompts", o.prompts, prompts);
}

}  // namespace kvbench
