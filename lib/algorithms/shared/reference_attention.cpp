#include "algorithms/shared/reference_attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "algorithms/shared/extra_attention.hpp"
#include "algorithms/shared/scoring.hpp"
#include "core/math.hpp"
#include "core/shared_work.hpp"
#include "core/vector_sums.hpp"

namespace kvbench {
namespace {

// Writes `rows` of `q`, scaled, to `out` from `row` on, and advances `row`.
void scale_rows(const Matrix& q, Range rows, double scale, MatrixD& out, Index& row) {
  for (Index j = rows.begin; j < rows.end; ++j, ++row) {
    for (Index t = 0; t < q.cols(); ++t) {
      out.row(row)[t] = scale * static_cast<double>(q.row(j)[t]);
    }
  }
}

MatrixD transposed_keys(const KvHead& head, std::span<const Index> tokens) {
  MatrixD keys, out;
  gather_rows(head.k, tokens, keys);
  transpose(keys, out);
  return out;
}

double largest_of(const double* x, Index n) {
  double out = -std::numeric_limits<double>::infinity();
#pragma omp simd reduction(max : out)
  for (Index j = 0; j < n; ++j) {
    out = std::max(out, x[j]);
  }
  return out;
}

void exponentiate(double shift, Index n, double* x) {
#pragma omp simd
  for (Index j = 0; j < n; ++j) {
    x[j] = exp_shared(x[j] - shift);
  }
}

}  // namespace

MatrixD reference_rows(const KvHead& head, Range positions) {
  const Range held = {std::max(positions.begin, head.q_start()), std::min(positions.end, head.n())};
  MatrixD out(head.group() * held.size(), head.d());
  Index row = 0;
  for (const Matrix& q : head.q) {
    scale_rows(q, {held.begin - head.q_start(), held.end - head.q_start()}, head.scale, out, row);
  }
  return out;
}

MatrixD reference_rows(const KvHead& head, const ExtraSet& set, Index count) {
  const std::vector<Range> queries = last_queries(set, count);
  Index each = 0;
  for (const Range& r : queries) {
    each += r.size();
  }
  MatrixD out(head.group() * each, head.d());
  Index row = 0;
  for (std::size_t g = 0; g < head.q.size(); ++g) {
    for (std::size_t i = 0; i < queries.size(); ++i) {
      scale_rows(set.segments[i].q[g], queries[i], head.scale, out, row);
    }
  }
  return out;
}

ReferenceAttention::ReferenceAttention(const Task& task, MatrixD queries, KeyScore score,
                                       const std::string& book_key)
    : queries_(std::move(queries)), output_(queries_.rows(), task.head.dv()) {
  const auto compute = [&] { return attend(task, score); };
  ScoreBook::Scores found = book_key.empty() ? compute() : whole_scores(task, book_key, compute);
  shift_ = std::move(found[0]);
  mass_ = std::move(found[1]);
  scores_ = std::move(found[2]);
  std::ranges::copy(found[3], output_.data());
}

// Largest logits, masses, scores, outputs.
ScoreBook::Scores ReferenceAttention::attend(const Task& task, KeyScore score) const {
  const KvHead& head = task.head;
  const std::span<const Index> tokens = task.tokens;
  const auto m = static_cast<Index>(tokens.size());
  std::vector<double> shift(rows());
  std::vector<double> masses(rows());
  std::vector<double> scores(score == KeyScore::none ? 0 : m, 0.0);
  std::vector<double> output(rows() * head.dv());
  const MatrixD keys_t = transposed_keys(head, tokens);
  MatrixD values;
  gather_rows(head.v, tokens, values);
  const auto softmax_of_block = [&](Index part) {
    const Index begin = part * kBlock;
    const Index count = std::min(kBlock, rows() - begin);
    MatrixD block(count, head.d());
    MatrixD x;
    std::copy_n(queries_.row(begin), count * head.d(), block.data());
    inner_products(block, keys_t, x);
    for (Index r = 0; r < count; ++r) {
      double* row = x.row(r);
      const auto i = static_cast<std::size_t>(begin + r);
      shift[i] = largest_of(row, m);
      exponentiate(shift[i], m, row);
      const double mass = sum(row, m);
      masses[i] = mass;
      for (Index j = 0; j < m; ++j) {
        row[j] /= mass;
      }
    }
    inner_products(x, values, block);
    std::copy_n(block.data(), count * head.dv(), output.data() + begin * head.dv());
    return x;
  };
  const auto add_scores = [&](Index, const MatrixD& x) {
    double* s = scores.data();
    for (Index r = 0; r < x.rows(); ++r) {
      const double* row = x.row(r);
      switch (score) {
        case KeyScore::none: break;
        case KeyScore::rms:
          for (Index j = 0; j < m; ++j) {
            s[j] = std::fma(row[j], row[j], s[j]);
          }
          break;
        case KeyScore::mean:
          for (Index j = 0; j < m; ++j) {
            s[j] += row[j];
          }
          break;
        case KeyScore::max:
          for (Index j = 0; j < m; ++j) {
            s[j] = std::max(s[j], row[j]);
          }
          break;
      }
    }
  };
  share_in_order(m > 0 ? (rows() + kBlock - 1) / kBlock : 0, softmax_of_block, add_scores);
  const double count = static_cast<double>(std::max<Index>(1, rows()));
  for (double& s : scores) {
    s = score == KeyScore::max ? s : s / count;
    s = score == KeyScore::rms ? std::sqrt(s) : s;
  }
  return {std::move(shift), std::move(masses), std::move(scores), std::move(output)};
}

MatrixD ReferenceAttention::logits(const KvHead& head, std::span<const Index> kept) const {
  MatrixD out;
  inner_products(queries_, transposed_keys(head, kept), out);
  return out;
}

MatrixD ReferenceAttention::exponentials(const KvHead& head, std::span<const Index> kept) const {
  MatrixD out = logits(head, kept);
  for (Index i = 0; i < out.rows(); ++i) {
    exponentiate(shift_[i], out.cols(), out.row(i));
  }
  return out;
}

MatrixD ReferenceAttention::softmax(const KvHead& head, std::span<const Index> kept,
                                    std::span<const float> w) const {
  std::vector<double> log_w;
  for (const float weight : w) {
    log_w.push_back(weight > 0.0F ? std::log(static_cast<double>(weight))
                                  : -std::numeric_limits<double>::infinity());
  }
  MatrixD out = logits(head, kept);
  for (Index i = 0; i < out.rows(); ++i) {
    double* row = out.row(i);
    for (Index j = 0; j < out.cols(); ++j) {
      row[j] += log_w[j];
    }
    const double largest = largest_of(row, out.cols());
    if (!std::isfinite(largest)) {
      std::fill_n(row, out.cols(), 0.0);
      continue;
    }
    exponentiate(largest, out.cols(), row);
    const double mass = sum(row, out.cols());
    for (Index j = 0; j < out.cols(); ++j) {
      row[j] /= mass;
    }
  }
  return out;
}

}  // namespace kvbench
