// Changes to the options of a replay, for tables of cases.
#pragma once

#include <functional>
#include <type_traits>
#include <utility>

#include "replay/options.hpp"

namespace kvbench::testing_replay {

using Change = std::function<void(ReplayOptions&)>;

/// Sets an option.
template <class Of, class T>
Change set(T Of::*option, std::type_identity_t<T> value) {
  return [option, value = std::move(value)](ReplayOptions& o) { o.*option = value; };
}

inline Change both(Change a, Change b) {
  return [a = std::move(a), b = std::move(b)](ReplayOptions& o) {
    a(o);
    b(o);
  };
}

inline Change shard(Index index, Index count) {
  return both(set(&ReplayOptions::shard_index, index), set(&ReplayOptions::shard_count, count));
}

}  // namespace kvbench::testing_replay
