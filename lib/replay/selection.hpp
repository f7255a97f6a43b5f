// What the plans of replay and cluster check alike: options, and which prompts, layers and heads of
// the traces are meant.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/types.hpp"
#include "trace/reader.hpp"

namespace kvbench {

/// Throws InputError(message) unless `good`.
inline void check_input(bool good, const std::string& message) {
  if (!good) {
    throw InputError(message);
  }
}

/// Whether `x` is among the wanted; nothing wanted means all.
template <class T>
bool chosen(const std::vector<T>& wanted, const T& x) {
  return wanted.empty() || std::find(wanted.begin(), wanted.end(), x) != wanted.end();
}

/// Every wanted thing must exist in some trace: a typo in --layers is no empty result. Throws
/// InputError.
template <class T>
void check_found(const char* option, const std::vector<T>& wanted, const std::set<T>& there) {
  for (const T& x : wanted) {
    check_input(there.count(x) > 0, fmt::format("{}: no trace has {}, expected some of {}", option,
                                                x, fmt::join(there, ", ")));
  }
}

/// Opens traces behind each other in `readers`; `names`: without folders. Throws InputError where
/// two names are the same.
inline void open_traces(const std::vector<std::string>& paths, Require require,
                        std::vector<TraceReader>& readers, std::vector<std::string>& names) {
  for (const std::string& path : paths) {
    readers.emplace_back(path, require);
    const std::string name = std::filesystem::path(path).filename().string();
    check_input(
        std::find(names.begin(), names.end(), name) == names.end(),
        fmt::format("{}: two traces are called {}; rows could not tell them apart", path, name));
    names.push_back(name);
  }
}

/// Numbers that a user chose; those of `ranges`, which are among them, need not all be there.
struct ChosenNumbers {
  std::vector<Index>& numbers;
  const std::vector<Range>& ranges;

  /// Drops what only a range asked for and no trace has. Throws InputError where another number is
  /// in no trace, or nothing of a range is.
  void keep(const char* option, const std::set<Index>& there) const {
    for (const Range& range : ranges) {
      check_input(std::ranges::any_of(
                      numbers, [&](Index x) { return range.contains(x) && there.contains(x); }),
                  fmt::format("{}: no trace has any of {}:{}, expected some of {}", option,
                              range.begin, range.end, fmt::join(there, ", ")));
    }
    std::erase_if(numbers, [&](Index x) {
      return there.count(x) == 0 &&
             std::ranges::any_of(ranges, [x](const Range& range) { return range.contains(x); });
    });
    check_found(option, numbers, there);
  }
};

/// What a user chose of all traces; empty: all.
struct Selection {
  const std::vector<std::string>& prompts;
  ChosenNumbers layers;
  ChosenNumbers heads;
  const char* heads_option;
  Index LayerMeta::*head_count;  ///< of such heads
};

/// Calls visit(trace, prompt, layer, LayerMeta) for every layer chosen, and leaves only layers and
/// heads in the choice that some trace has. Throws InputError where a prompt, layer or head was
/// chosen that no trace has.
template <class Visit>
void each_layer(const std::vector<TraceReader>& readers, const Selection& chose,
                const Visit& visit) {
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
        for (Index h = 0; h < layer.*chose.head_count; ++h) {
          heads.insert(h);
        }
        if (chosen(chose.prompts, all[p].id) && chosen(chose.layers.numbers, layer.layer)) {
          visit(t, p, l, layer);
        }
      }
    }
  }
  chose.layers.keep("--layers", layers);
  chose.heads.keep(chose.heads_option, heads);
  check_found("--prompts", chose.prompts, prompts);
}

}  // namespace kvbench
