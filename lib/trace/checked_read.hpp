// Internal to lib/trace: values of a trace's datasets, checked against their checksums and ranges.
#pragma once

#include <cstdint>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/float16.hpp"
#include "trace/dataset.hpp"
#include "trace/slab_read.hpp"

namespace kvbench::h5 {

/// Throws InputError on NaN and infinity. `name(row, column)` names an element. x [rows, cols].
template <class Name>
void check_finite(const Tensor& tensor, const float* x, Index rows, Index cols, Name name) {
  const Index bad = first_non_finite(x, rows * cols);
  if (bad != rows * cols) {
    tensor.where.refuse("{} is {}, expected finite values", name(bad / cols, bad % cols), x[bad]);
  }
}

/// One head of a dataset of rank 3 and where its [rows, width] values go.
struct HeadRead {
  const Tensor* tensor = nullptr;
  Index head = 0;
  float* out = nullptr;
};

/// Reads heads and checks that they are finite and match their checksums. Messages call rows
/// `row_name`; the last one of each head is number n - 1.
void read_heads(const InputFile& file, std::span<const HeadRead> reads, Index n,
                const char* row_name = "token");

/// `count` elements from `start` on, unchecked.
void read_box(const InputFile& file, const Tensor& tensor, const std::vector<Index>& start,
              const std::vector<Index>& count, float* out);
/// All elements, checked against their checksum; they may be NaN or infinite.
void read_whole(const InputFile& file, const Tensor& tensor, float* out);

/// A vector of norms, finite and at least 0. Messages call the first `what` `first`.
std::vector<float> read_norms(const InputFile& file, const Tensor& norms, const char* what,
                              Index first);

/// All of a dataset of integers (Spec::integers), checked against its checksum.
std::vector<std::int64_t> read_integers(const InputFile& file, const Tensor& integers);

/// Checks matrices that are read in parts against their checksums, each once. Thread-safe.
class CheckedOnce {
 public:
  void check(const InputFile& file, const Tensor& matrix) const;

 private:
  mutable std::mutex lock_;
  mutable std::set<const Dataset*> done_;
};

}  // namespace kvbench::h5
