// Shapes, element types and views used by every folder. No I/O, no arithmetic. Conventions:
// row-major, last axis contiguous; positions 0-based; `n` tokens, `d` = head_dim of queries and
// keys, `dv` = head_dim of values. Query head h reads KV head h / (q_heads / kv_heads).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/aligned_memory.hpp"

namespace kvbench {

using Index = std::int64_t;

/// Element type of the model's cache; it determines bytes.
enum class DType : std::uint8_t { float16, bfloat16, float32 };

constexpr Index bytes_per_element(DType t) {
  return t == DType::float32 ? 4 : 2;
}

constexpr std::string_view name(DType t) {
  switch (t) {
    case DType::float16: return "float16";
    case DType::bfloat16: return "bfloat16";
    case DType::float32: return "float32";
  }
  return "?";
}

/// Precision of logits, exponentials and weighted values. Sums over tokens are always float64
/// (attention/query_block.hpp).
enum class Precision : std::uint8_t { float32, float64 };

constexpr Index bytes_per_element(Precision p) {
  return p == Precision::float32 ? 4 : 8;
}

constexpr std::string_view name(Precision p) {
  return p == Precision::float32 ? "float32" : "float64";
}

template <class Use>
constexpr auto with_element(Precision p, const Use& use) {
  return p == Precision::float32 ? use(0.0F) : use(0.0);
}

enum class Reduce { mean, max, sum };

/// Half-open range of token positions [begin, end).
struct Range {
  Index begin = 0;
  Index end = 0;

  constexpr Index size() const { return end > begin ? end - begin : 0; }
  constexpr bool contains(Index i) const { return begin <= i && i < end; }
  friend constexpr bool operator==(const Range&, const Range&) = default;
};

/// 64-byte alignment: vectorised sums peel up to an aligned address, which would otherwise affect
/// the last bit of a result.
template <class T>
struct AlignedAllocator {
  using value_type = T;
  AlignedAllocator() = default;
  template <class U>
  AlignedAllocator(const AlignedAllocator<U>&) {}  // NOLINT(google-explicit-constructor)

  T* allocate(std::size_t count) { return static_cast<T*>(allocate_aligned(count * sizeof(T))); }
  void deallocate(T* p, std::size_t count) { free_aligned(p, count * sizeof(T)); }
  friend bool operator==(const AlignedAllocator&, const AlignedAllocator&) { return true; }
};

template <class T>
using AlignedVector = std::vector<T, AlignedAllocator<T>>;

/// Read-only row-major view [rows, cols] of float32.
struct MatrixView {
  const float* data = nullptr;
  Index rows = 0;
  Index cols = 0;

  const float* row(Index i) const { return data + i * cols; }
  std::span<const float> row_span(Index i) const {
    return {row(i), static_cast<std::size_t>(cols)};
  }
  MatrixView slice(Range r) const { return {row(r.begin), r.size(), cols}; }
};

/// Owned row-major matrix [rows, cols] of float32 or float64.
template <class T>
class BasicMatrix {
 public:
  BasicMatrix() = default;
  BasicMatrix(Index rows, Index cols) : rows_(rows), cols_(cols), data_(rows * cols) {}

  /// Changes the shape, keeps memory. Existing rows are kept if cols is unchanged, otherwise
  /// unspecified.
  void resize(Index rows, Index cols) {
    rows_ = rows;
    cols_ = cols;
    data_.resize(rows * cols);
  }

  Index rows() const { return rows_; }
  Index cols() const { return cols_; }
  T* data() { return data_.data(); }
  const T* data() const { return data_.data(); }
  T* row(Index i) { return data_.data() + i * cols_; }
  const T* row(Index i) const { return data_.data() + i * cols_; }
  MatrixView view() const requires std::is_same_v<T, float> { return {data_.data(), rows_, cols_}; }
  // Matrices convert to views.
  operator MatrixView() const  // NOLINT(google-explicit-constructor)
      requires std::is_same_v<T, float> {
    return view();
  }

 private:
  Index rows_ = 0;
  Index cols_ = 0;
  AlignedVector<T> data_;
};

using Matrix = BasicMatrix<float>;
using MatrixD = BasicMatrix<double>;

/// One KV head of one layer of one prompt, with the query heads of its group. Elements are exact
/// float32 copies, all finite.
struct KvHead {
  Matrix k;               ///< [n, d]
  Matrix v;               ///< [n, dv]
  std::vector<Matrix> q;  ///< group x [nq, d]; row r is the query at position n - nq + r
  double scale = 1.0;     ///< s in exp(s<k,q>)
  /// [group]: logit of a sink without key and value per query head, not scaled, one more term in
  /// every denominator (GPT-OSS). Empty: none.
  std::vector<float> sink_logit = {};
  Index window = 0;  ///< a query sees its own position and the window - 1 before it; 0: all
  DType dtype = DType::float32;
  Precision precision = Precision::float64;

  Index n() const { return k.rows(); }
  Index d() const { return k.cols(); }
  Index dv() const { return v.cols(); }
  Index nq() const { return q.empty() ? 0 : q.front().rows(); }
  Index group() const { return static_cast<Index>(q.size()); }
  Index q_start() const { return n() - nq(); }
  Index pair_bytes() const { return (d() + dv()) * bytes_per_element(dtype); }
  /// Tokens visible to the query at `position`.
  Range visible(Index position) const {
    return {window > 0 && window <= position ? position + 1 - window : 0, position + 1};
  }
};

/// [group], or null if the head has none. Valid as long as the head.
inline const float* sink_logits_of(const KvHead& head) {
  return head.sink_logit.empty() ? nullptr : head.sink_logit.data();
}

/// Sink logit of query head `g`, or -inf.
inline double sink_logit(const KvHead& head, Index g) {
  return head.sink_logit.empty()
             ? -std::numeric_limits<double>::infinity()
             : static_cast<double>(head.sink_logit[static_cast<std::size_t>(g)]);
}

/// Identifies a KV head: key of random streams and columns of rows.
struct HeadId {
  std::string prompt;
  Index layer = 0;
  Index kv_head = 0;
};

}  // namespace kvbench
