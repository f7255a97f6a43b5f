#include "attention/read_lists.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/query_block.hpp"

namespace kvbench {
namespace {

constexpr Index kSlab = 512;  // rows that are transposed at a time

// Part number `part` of a query's list, without weights of 0.
template <class T>
struct Piece {
  std::vector<Index> rows;
  std::vector<T> log_weights;

  bool fill(const TokenRows& of, const ReadLists& lists, std::size_t place, std::size_t part) {
    rows.clear();
    log_weights.clear();
    const std::vector<std::uint32_t>& tokens = lists.tokens[place];
    const std::size_t begin = part * kSetTokens;
    const std::size_t end = std::min<std::size_t>(tokens.size(), begin + kSetTokens);
    auto at = of.tokens.begin();
    for (std::size_t i = begin; i < end; ++i) {
      auto row = static_cast<Index>(tokens[i]);
      if (!of.tokens.empty()) {
        at = std::lower_bound(at, of.tokens.end(), row);
        row = at - of.tokens.begin();
      }
      if (lists.weights.empty()) {
        rows.push_back(row);
      } else if (const float w = lists.weights[place][i]; w > 0.0F) {
        rows.push_back(row);
        log_weights.push_back(static_cast<T>(std::log(static_cast<double>(w))));
      }
    }
    return begin < tokens.size();
  }
};

template <class T>
void add_in(const TokenRows& rows, Index g, const ReadLists& lists, SoftmaxSums& sums) {
  QueryBlock<T>& block = QueryBlock<T>::of_thread();
  Piece<T> piece;
  bool more = true;
  for (std::size_t part = 0; more; ++part) {
    more = false;
    PartialSums of{MatrixD(lists.queries, rows.values.cols), std::vector<double>(lists.queries),
                   std::vector<double>(lists.queries, -std::numeric_limits<double>::infinity())};
    for (Index j = 0; j < lists.queries; ++j) {
      more = piece.fill(rows, lists, lists.place(g, j), part) || more;
      const auto count = static_cast<Index>(piece.rows.size());
      if (count == 0) {
        continue;
      }
      const RowList values{rows.values, piece.rows, count};
      const Range all{0, count};
      block.attend(sums.queries(), {j, j + 1}, {rows.keys, piece.rows, count},
                   piece.log_weights.empty() ? nullptr : piece.log_weights.data(), {&all, 1},
                   &values, of.numerator.row(j));
      of.shift[j] = block.shift(0);
      of.denominator[j] = block.total(0);
    }
    sums.add(of);
  }
}

template <class T>
void visit_in(const MatrixD& queries, MatrixView of, std::span<const Index> rows,
              const std::function<void(Index, std::span<const double>)>& use) {
  BasicMatrix<T> block, keys, keys_t, products;
  const auto count = static_cast<Index>(rows.size());
  MatrixD out(std::min(kReadBlock, queries.rows()), count);
  for (Index q0 = 0; q0 < queries.rows(); q0 += kReadBlock) {
    block.resize(std::min(kReadBlock, queries.rows() - q0), queries.cols());
    std::transform(queries.row(q0), queries.row(q0) + block.rows() * block.cols(), block.data(),
                   [](double x) { return static_cast<T>(x); });
    for (Index i0 = 0; i0 < count; i0 += kSlab) {
      gather_rows(of, rows.subspan(i0, std::min(kSlab, count - i0)), keys);
      transpose(keys, keys_t);
      inner_products(block, keys_t, products);
      for (Index j = 0; j < block.rows(); ++j) {
        std::copy(products.row(j), products.row(j) + products.cols(), out.row(j) + i0);
      }
    }
    for (Index j = 0; j < block.rows(); ++j) {
      use(q0 + j, {out.row(j), static_cast<std::size_t>(count)});
    }
  }
}

}  // namespace

void add_read(const TokenRows& rows, Index g, const ReadLists& lists, SoftmaxSums& sums) {
  with_element(sums.precision(),
               [&](auto element) { add_in<decltype(element)>(rows, g, lists, sums); });
}

void visit_products(const MatrixD& queries, MatrixView of, std::span<const Index> rows,
                    Precision precision,
                    const std::function<void(Index, std::span<const double>)>& use) {
  with_element(precision,
               [&](auto element) { visit_in<decltype(element)>(queries, of, rows, use); });
}

}  // namespace kvbench
