// Reads that are the same for all queries.
#pragma once

#include <utility>

#include "algorithms/contract.hpp"

namespace kvbench {

/// Every query reads `held`; there is no index.
class FixedReads final : public ReadIndex {
 public:
  explicit FixedReads(Compressed held) : held_(std::move(held)) {}

  Reads search() override {
    Reads out;
    out.degenerate = held_.degenerate;
    out.diag = held_.diag;
    out.fixed = std::move(held_);
    return out;
  }

 private:
  Compressed held_;
};

}  // namespace kvbench
