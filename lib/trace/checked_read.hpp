// Internal to lib/trace: values of a trace's datasets with everything that is asked of them:
// finite, and those of their checksums.
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

/// Refuses NaN and infinity, which widening keeps apart and fmt names. `place(row, column)`: which
/// element it is. x [rows, cols].
template <class Name>
void check_finite(const Tensor& tensor, const float* x, Index rows, Index cols, Name place) {
  const Index bad = first_non_finite(x, rows * cols);
  if (bad != rows * cols) {
    tensor.where.refuse("{} is {}, expected finite values", place(bad / cols, bad % cols), x[bad]);
  }
}

/// One head of a dataset of rank 3 and where its [rows, width] values go.
struct HeadRead {
  const Tensor* tensor = nullptr;
  Index head = 0;
  float* out = nullptr;
};

/// Reads heads, all finite and those of their checksums. Rows are called `row_name`; the last one
/// of each is number n - 1.
void read_heads(const InputFile& file, std::span<const HeadRead> reads, Index n,
                const char* row_name = "token");

/// `count` elements from `start` on, unchecked.
void read_box(const InputFile& file, const Tensor& tensor, const std::vector<Index>& start,
              const std::vector<Index>& count, float* out);
/// All elements, which may be NaN or infinite.
void read_whole(const InputFile& file, const Tensor& tensor, float* out);

/// All of a vector of norms, finite and at least 0; the first is called `what` `first`.
std::vector<float> read_norms(const InputFile& file, const Tensor& norms, const char* what,
                              Index first);

/// All of a dataset of integers whose storage was checked.
std::vector<std::int64_t> read_integers(const InputFile& file, const Object& dataset);

/// Matrices of which parts are read: each is checked as a whole, once. Thread-safe.
class CheckedOnce {
 public:
  /// All of a matrix against its checksum, a part at a time.
  void check(const InputFile& file, const Tensor& matrix) const;

 private:
  mutable std::mutex lock_;
  mutable std::set<const Dataset*> done_;
};

}  // namespace kvbench::h5
