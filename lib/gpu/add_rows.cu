#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "gpu/attend.cuh"
#include "gpu/operations.cuh"

namespace kvbench::gpu {
namespace {

constexpr int kThreads = 256;

// Tokens with a nonzero weight, in the set's order; `entering` gets their index in `rows`.
std::vector<Token> tokens_of(const WeightedRows& set, std::vector<std::size_t>& entering) {
  const double common = std::log(static_cast<double>(set.common));
  std::vector<Token> out;
  for (std::size_t i = 0; i < set.rows.size(); ++i) {
    const float w = set.weights.empty() ? set.common : set.weights[i];
    if (w != 0.0F) {  // log 0 would make a shift of -inf
      out.push_back({set.rows[i], set.weights.empty() ? common : std::log(static_cast<double>(w))});
      entering.push_back(i);
    }
  }
  return out;
}

// A query of a SoftmaxSums, and the queries of the plan that are its parts.
struct Target {
  double shift, denominator;
  Index first, count;  // of the list of parts
};
struct ListSums {
  Index query;
  SoftmaxPart of;
};

// Adds each target's parts to it, in order. numerators [targets, dv]; `added` [queries, dv] may be
// null: 0.
__global__ void add_parts(const Target* targets, Index count, const ListSums* parts, Index dv,
                          const Figures* figures, const double* added, double* numerators,
                          Target* after) {
  const Index at = Index{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= count * dv) {
    return;
  }
  Target to = targets[at / dv];
  double numerator = numerators[at];
  for (Index i = to.first; i < to.first + to.count; ++i) {
    const ListSums part = parts[i];
    const Figures f = figures[part.query];
    if (f.shift == -std::numeric_limits<double>::infinity()) {
      continue;  // nothing entered
    }
    const CommonShift common(to.shift, f.shift);
    const double total = part.of == SoftmaxPart::numerator ? 0.0 : f.total;
    const double x = part.of == SoftmaxPart::denominator || added == nullptr
                         ? 0.0
                         : added[part.query * dv + at % dv];
    to.denominator = to.denominator * common.mine + total * common.theirs;
    numerator = numerator * common.mine + x * common.theirs;
    to.shift = common.top;
  }
  numerators[at] = numerator;
  if (at % dv == 0) {
    after[at / dv] = to;
  }
}

// Collects sets until scratch is full, each as its own list.
template <class T>
class Batch {
 public:
  explicit Batch(const DeviceHead& head) : head_(head), plan_(head) {}

  // `to` must live until the next attend().
  void add(const WeightedRows& set, SoftmaxSums& to) {
    const MatrixD& queries = to.queries();
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
      if (!holds(to, {begin, begin + rows})) {
        attend();
        continue;
      }
      const Index scaled = held_at(begin);
      for (Index r = 0; r < rows; ++r) {
        parts_[static_cast<std::size_t>(scaled + r)].push_back(
            {static_cast<Index>(plan_.queries.size()) + r, set.part});
      }
      plan_.add(scaled, static_cast<Index>(tokens_.size()), count,
                {seen.data() + begin, seen.data() + begin + rows}, values);
      add_tokens(list, set);
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
    std::vector<Target> targets;
    std::vector<ListSums> parts;
    std::vector<double> numerators;
    for (std::size_t i = 0; i < to_.size(); ++i) {
      const auto [sums, row] = to_[i];
      targets.push_back({sums->shift[row], sums->denominator[row], static_cast<Index>(parts.size()),
                         static_cast<Index>(parts_[i].size())});
      parts.insert(parts.end(), parts_[i].begin(), parts_[i].end());
      numerators.insert(numerators.end(), sums->numerator.row(row), sums->numerator.row(row) + dv);
    }
    const auto count = static_cast<Index>(targets.size());
    const Array<Target> before(device, std::span<const Target>(targets));
    const Array<Target> after(device, count);
    const Array<ListSums> of(device, std::span<const ListSums>(parts));
    const Array<double> sum(device, std::span<const double>(numerators));
    device.launch(add_parts, ceil_div(count * dv, kThreads), kThreads, before.data(), count,
                  of.data(), dv, attended.figures.data(), attended.numerators.data(), sum.data(),
                  after.data());
    after.get(targets);
    sum.get(numerators);
    for (std::size_t i = 0; i < to_.size(); ++i) {
      const auto [sums, row] = to_[i];
      sums->shift[row] = targets[i].shift;
      sums->denominator[row] = targets[i].denominator;
      std::copy_n(numerators.data() + static_cast<Index>(i) * dv, dv, sums->numerator.row(row));
    }
    plan_ = QueryPlan(head_);
    made_ = 0;
    held_ = {};
    tokens_.clear();
    made_k_.clear();
    made_v_.clear();
    queries_.clear();
    to_.clear();
    parts_.clear();
  }

 private:
  struct To {
    PartialSums* sums;
    Index row;
  };

  // Parts of a sum share its queries: whether `rows` of `to` are among the targets, each once. If
  // no row of it is yet, or those before are, they are added.
  bool holds(SoftmaxSums& to, Range rows) {
    if (last_ != &to || held_.size() == 0) {
      last_ = &to;
      held_ = {rows.begin, rows.begin};
      first_held_ = static_cast<Index>(to_.size());
    }
    if (rows.begin >= held_.begin && rows.end <= held_.end) {
      return true;
    }
    if (rows.begin != held_.end) {
      return false;
    }
    const MatrixD& queries = to.queries();
    std::transform(queries.row(rows.begin), queries.row(rows.end), std::back_inserter(queries_),
                   [](double x) { return static_cast<T>(x); });
    for (Index r = rows.begin; r < rows.end; ++r) {
      to_.push_back({&to.sums(), r});
    }
    parts_.resize(to_.size());
    held_.end = rows.end;
    return true;
  }
  Index held_at(Index row) const { return first_held_ + row - held_.begin; }

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

  const DeviceHead& head_;
  QueryPlan plan_;
  std::vector<Token> tokens_;
  Index made_ = 0;
  std::vector<float> made_k_;                 // [made_, d]
  std::vector<float> made_v_;                 // [made_, dv]; 0 if not read
  std::vector<T> queries_;                    // [targets, d]
  std::vector<To> to_;                        // [targets]
  std::vector<std::vector<ListSums>> parts_;  // [targets]
  const SoftmaxSums* last_ = nullptr;         // whose queries held_ the last targets are
  Range held_{};
  Index first_held_ = 0;
};

template <class T>
void add_rows_in(const DeviceHead& head, std::span<SoftmaxSums> sums,
                 std::span<const std::vector<WeightedRows>> sets) {
  Batch<T> batch(head);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    for (const WeightedRows& set : sets[i]) {
      for (const WeightedRows& part : parts_of(set)) {
        batch.add(part, sums[i]);
      }
    }
  }
  batch.attend();
}

}  // namespace

void add_rows_to(const DeviceHead& head, std::span<SoftmaxSums> sums,
                 std::span<const std::vector<WeightedRows>> sets) {
  with_element(head.host->precision,
               [&](auto element) { add_rows_in<decltype(element)>(head, sums, sets); });
}

}  // namespace kvbench::gpu
