// A stream of a method, token by token as the protocol feeds it, with the contract checked.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "method_checks.hpp"

namespace kvbench {

/// Tokens that stay exact outside the budget.
struct ExactTokens {
  Index sink = 0;    ///< the first
  Index recent = 0;  ///< the last
};

class StreamOf {
 public:
  StreamOf(const std::string& method, const KvHead& head, const Given& given,
           ExactTokens exact = {}, std::optional<Index> budget = {}, std::uint64_t seed = 1)
      : head_(head), exact_(exact) {
    const Method& m = find_method(method);
    cache_ = m.open_stream(
        {head, exact.recent, budget, Rng(seed, {"p", 0, 0}, method), cpu_backend(), exact.sink},
        Params(method, params_of(m, given), given));
  }

  /// The next position arrives; the position.
  Index step() {
    const Index leaving = next_ - exact_.recent;
    cache_->append(next_, leaving >= exact_.sink ? leaving : -1);
    return next_++;
  }
  /// All positions up to `end`, or to the end; what is held then.
  Compressed run(std::optional<Index> end = {}) {
    while (next_ < end.value_or(head_.n())) {
      step();
    }
    return view();
  }

  /// How many tokens have left the window and are no sinks.
  Index left() const { return std::max<Index>(0, next_ - exact_.recent - exact_.sink); }
  Compressed view() const {
    Compressed c = cache_->view();
    const std::vector<Index> tokens = positions(exact_.sink, exact_.sink + left());
    check_compressed(c, Task{head_, tokens, {}, {}, {}, Rng()});
    return c;
  }

 private:
  const KvHead& head_;
  ExactTokens exact_;
  std::unique_ptr<StreamCache> cache_;
  Index next_ = 0;
};

}  // namespace kvbench
