#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "gpu/attend.cuh"
#include "gpu/attention.cuh"

namespace kvbench::gpu {
namespace {

// Tokens with a nonzero weight, in the set's order; `entering` gets their index in `rows`.
std::vector<Token> tokens_of(const WeightedRows& set, std::vector<std::size_t>& entering) {
  std::vector<Token> out;
  for (std::size_t i = 0; i < set.rows.size(); ++i) {
    const float w = set.weights.empty() ? set.common : set.weights[i];
    if (w != 0.0F) {  // log 0 would make a shift of -inf
      out.push_back({set.rows[i], std::log(static_cast<double>(w))});
      entering.push_back(i);
    }
  }
  return out;
}

// Collects sets until scratch is full, each as its own list.
template <class T>
class Batch {
 public:
  explicit Batch(const Head& head) : head_(head), plan_(head) {}

  // `to` must be empty, with a row per query, and live until the next attend().
  void add(const MatrixD& queries, const WeightedRows& set, PartialSums& to) {
    std::vector<std::size_t> entering;
    const std::vector<Token> list = tokens_of(set, entering);
    const auto count = static_cast<Index>(list.size());
    if (count == 0) {
      return;
    }
    std::vector<Range> seen;
    for (Index r = 0; r < queries.rows(); ++r) {
      seen.push_back(seen_rows(set, &entering, r));
    }
    const bool values = set.part != SoftmaxPart::denominator;
    for (Index begin = 0; begin < queries.rows();) {
      if (plan_.free_queries(count, values) < 1 || !fits(list, set)) {
        attend();
      }
      const Index rows =
          std::clamp<Index>(plan_.free_queries(count, values), 1, queries.rows() - begin);
      plan_.add(static_cast<Index>(tokens_.size()), count,
                {seen.data() + begin, seen.data() + begin + rows}, values);
      add_tokens(list, set);
      std::transform(queries.row(begin), queries.row(begin + rows), std::back_inserter(queries_),
                     [](double x) { return static_cast<T>(x); });
      for (Index r = begin; r < begin + rows; ++r) {
        to_.push_back({&to, r, set.part});
      }
      begin += rows;
    }
  }

  void attend() {
    if (to_.empty()) {
      return;
    }
    const Device& device = head_.device;
    const Index dv = head_.host->dv();
    const Array<Token> tokens(device, std::span<const Token>(tokens_));
    const Array<float> made_k(device, std::span<const float>(made_k_));
    const Array<float> made_v(device, std::span<const float>(made_v_));
    const Array<T> queries(device, std::span<const T>(queries_));
    const Attended<T> attended =
        gpu::attend<T>(device, plan_, tokens, {head_.k.data(), made_k.data(), head_.host->d()},
                       {head_.v.data(), made_v.data(), dv}, queries);
    std::vector<Figures> figures(to_.size());
    std::vector<double> numerators(attended.numerators.size());
    attended.figures.get(figures);
    attended.numerators.get(numerators);
    for (std::size_t i = 0; i < to_.size(); ++i) {
      const auto& [sums, row, part] = to_[i];
      sums->shift[row] = figures[i].shift;
      if (part != SoftmaxPart::numerator) {
        sums->denominator[row] = figures[i].total;
      }
      if (part != SoftmaxPart::denominator) {
        std::copy_n(numerators.data() + static_cast<Index>(i) * dv, dv, sums->numerator.row(row));
      }
    }
    plan_ = QueryPlan(head_);
    made_ = 0;
    tokens_.clear();
    made_k_.clear();
    made_v_.clear();
    queries_.clear();
    to_.clear();
  }

 private:
  struct To {
    PartialSums* sums;
    Index row;
    SoftmaxPart part;
  };

  bool fits(const std::vector<Token>& list, const WeightedRows& set) const {
    const auto made =
        set.of_head
            ? 0
            : list.size() * static_cast<std::size_t>(std::max(set.keys.cols, set.values.cols));
    const std::size_t scratch = head_.device.scratch_bytes();
    return (tokens_.size() + list.size()) * sizeof(Token) <= scratch &&
           (std::max(made_k_.size(), made_v_.size()) + made) * sizeof(float) <= scratch;
  }

  void add_tokens(const std::vector<Token>& list, const WeightedRows& set) {
    if (set.of_head) {
      tokens_.insert(tokens_.end(), list.begin(), list.end());
      return;
    }
    for (const Token& token : list) {
      const auto k = set.keys.row_span(token.row);
      made_k_.insert(made_k_.end(), k.begin(), k.end());
      if (set.part != SoftmaxPart::denominator) {
        const auto v = set.values.row_span(token.row);
        made_v_.insert(made_v_.end(), v.begin(), v.end());
      }
      ++made_;
      made_v_.resize(made_ * head_.host->dv());
      tokens_.push_back({-made_, token.log_weight});
    }
  }

  const Head& head_;
  QueryPlan plan_;
  std::vector<Token> tokens_;
  Index made_ = 0;
  std::vector<float> made_k_;  // [made_, d]
  std::vector<float> made_v_;  // [made_, dv]; 0 if not read
  std::vector<T> queries_;     // [queries, d]
  std::vector<To> to_;         // target of each query's sums
};

template <class T>
void add_rows_in(const Head& head, std::span<SoftmaxSums> sums,
                 std::span<const std::vector<WeightedRows>> sets) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Batch<T> batch(head);
  std::vector<std::vector<PartialSums>> partial(sums.size());
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const MatrixD& queries = sums[i].queries();
    const auto m = static_cast<std::size_t>(queries.rows());
    std::vector<WeightedRows> parts;
    for (const WeightedRows& set : sets[i]) {
      const std::vector<WeightedRows> of_set = parts_of(set);
      parts.insert(parts.end(), of_set.begin(), of_set.end());
    }
    partial[i].assign(parts.size(), {MatrixD(queries.rows(), head.host->dv()),
                                     std::vector<double>(m), std::vector<double>(m, -kInfinity)});
    for (std::size_t p = 0; p < parts.size(); ++p) {
      batch.add(queries, parts[p], partial[i][p]);
    }
  }
  batch.attend();
  for (std::size_t i = 0; i < sums.size(); ++i) {
    for (const PartialSums& p : partial[i]) {
      sums[i].add(p);
    }
  }
}

}  // namespace

void add_rows_to(const Head& head, std::span<SoftmaxSums> sums,
                 std::span<const std::vector<WeightedRows>> sets) {
  with_element(head.host->precision,
               [&](auto element) { add_rows_in<decltype(element)>(head, sums, sets); });
}

}  // namespace kvbench::gpu
