#include "trace/checked_read.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace kvbench::h5 {

namespace {

constexpr Index kPartElements = Index{1} << 20;  // read at a time to check a matrix

// `part`: "head 3: ", or empty.
void check_digest(const Place& where, const std::string& part, const std::string& expected,
                  ElementHash& got) {
  const std::string text = got.text();
  where.expect(text == expected,
               "{}its SHA-256 is {}, expected {} (attribute {}): the values were changed", part,
               text, expected, schema::kDigest);
}

// Checks numbers against one of the dataset's checksums, the one of number `part` and name `name`.
void check_numbers(const Tensor& tensor, std::size_t part, const std::string& name, const float* x,
                   Index count) {
  if (!tensor.digests.empty()) {
    ElementHash hash(tensor.dtype);
    hash.add(x, count);
    check_digest(tensor.where, name, tensor.digests[part], hash);
  }
}

}  // namespace

void read_heads(const InputFile& file, std::span<const HeadRead> reads, Index n,
                const char* row_name) {
  std::vector<Slab> slabs;
  for (const HeadRead& r : reads) {
    slabs.push_back(
        slab(*r.tensor, {r.head, 0, 0}, {1, r.tensor->rows(), r.tensor->width()}, r.out));
  }
  read_slabs(file, slabs);
  for (const HeadRead& r : reads) {
    const Tensor& t = *r.tensor;
    check_finite(t, r.out, t.rows(), t.width(), [&](Index row, Index element) {
      return fmt::format("head {}, {} {}, element {}", r.head, row_name, n - t.rows() + row,
                         element);
    });
    check_numbers(t, static_cast<std::size_t>(r.head), fmt::format("head {}: ", r.head), r.out,
                  t.rows() * t.width());
  }
}

void read_box(const InputFile& file, const Tensor& tensor, const std::vector<Index>& start,
              const std::vector<Index>& count, float* out) {
  const Slab one = slab(tensor, start, count, out);
  read_slabs(file, {&one, 1});
}

void read_whole(const InputFile& file, const Tensor& tensor, float* out) {
  const Index count =
      std::accumulate(tensor.sizes.begin(), tensor.sizes.end(), Index{1}, std::multiplies<>());
  if (count > 0) {
    read_box(file, tensor, std::vector<Index>(tensor.sizes.size(), 0), tensor.sizes, out);
  }
  check_numbers(tensor, 0, "", out, count);
}

std::vector<float> read_norms(const InputFile& file, const Tensor& norms, const char* what,
                              Index first) {
  std::vector<float> out(norms.width());
  read_whole(file, norms, out.data());
  for (const float x : out) {
    norms.where.expect(std::isfinite(x) && x >= 0.0F, "{} {} is {}, expected finite numbers >= 0",
                       what, first++, x);
  }
  return out;
}

std::vector<std::int64_t> read_integers(const InputFile& file, const Tensor& integers) {
  std::vector<std::int64_t> out(integers.width());
  if (!out.empty()) {
    const Slab all = whole_integers(integers, out.data());
    read_slabs(file, {&all, 1});
  }
  if (!integers.digests.empty()) {
    ElementHash hash(DType::float32);
    hash.add_integers(out, integers.data->element.bytes);
    check_digest(integers.where, "", integers.digests.front(), hash);
  }
  return out;
}

void CheckedOnce::check(const InputFile& file, const Tensor& matrix) const {
  const std::lock_guard lock(lock_);
  if (matrix.digests.empty() || done_.contains(matrix.data.get())) {
    return;
  }
  ElementHash hash(matrix.dtype);
  const Index rows = std::min(matrix.rows(), std::max<Index>(1, kPartElements / matrix.width()));
  Matrix part(rows, matrix.width());
  for (Index row = 0; row < matrix.rows(); row += rows) {
    const Index count = std::min(rows, matrix.rows() - row);
    read_box(file, matrix, {row, 0}, {count, matrix.width()}, part.data());
    hash.add(part.data(), count * matrix.width());
  }
  check_digest(matrix.where, "", matrix.digests.front(), hash);
  done_.insert(matrix.data.get());
}

}  // namespace kvbench::h5
