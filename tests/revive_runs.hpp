// KVReviver's stream on heads made for tests: its parameters, tasks, runs and bytes.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "algorithms/contract.hpp"
#include "algorithms/methods.hpp"
#include "core/float16.hpp"
#include "make_head.hpp"

namespace kvbench {

namespace testing_revive {

using Given = std::map<std::string, std::string>;

inline KvHead rounded_head(const HeadShape& shape, unsigned seed) {
  KvHead head = make_head(shape, seed);
  round_to(shape.dtype, head.k.data(), shape.n * shape.d);
  round_to(shape.dtype, head.v.data(), shape.n * shape.dv);
  return head;
}

inline Params params_of(const Given& given) {
  return {"kvreviver", method_kvreviver().info.params, given};
}

inline Task task_of(const KvHead& head, std::span<const Index> tokens, std::optional<Index> budget,
                    std::uint64_t seed = 0) {
  return {head, tokens, budget, {0, head.n()}, {}, Rng(seed, {"p", 0, 0}, "kvreviver")};
}

inline Compressed run(const KvHead& head, const std::vector<Index>& tokens,
                      std::optional<Index> budget, Given given = {}, std::uint64_t seed = 0) {
  given["prefill"] = "stream";
  return method_kvreviver().compress(task_of(head, tokens, budget, seed), params_of(given));
}

inline Index bytes_of(const Compressed& c, const KvHead& head) {
  return c.aux_bytes +
         c.payload_bytes.value_or(static_cast<Index>(c.held.tokens.size()) * head.pair_bytes());
}

}  // namespace testing_revive
}  // namespace kvbench
