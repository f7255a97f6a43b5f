#include "replay/stream_job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>

#include "attention/query_block.hpp"
#include "core/error.hpp"
#include "gpu/device.hpp"
#include "metrics/error.hpp"
#include "metrics/memory.hpp"
#include "replay/clock.hpp"
#include "replay/compressed_rows.hpp"
#include "replay/head_cache.hpp"
#include "replay/kept_heads.hpp"
#include "replay/row_parts.hpp"

namespace kvbench {
namespace {

// Bytes of a job.
constexpr Index kStreamListBytes = 32;  // per token: positions, flags and a view's lists
constexpr Index kStreamTextBytes = Index{1} << 19;  // rows before they are written

// Most rows of probabilities [n] that a job holds.
constexpr Index kProbabilityRows = 32;

std::span<const double> row_of(const MatrixD& m, std::size_t r) {
  return {m.row(static_cast<Index>(r)), static_cast<std::size_t>(m.cols())};
}

// Exact probabilities of the evaluated queries, computed in blocks of steps.
class Probabilities {
 public:
  explicit Probabilities(const StreamContext& c)
      : c_(c), rows_(std::max<Index>(1, kProbabilityRows / c.head().group())) {}

  // [n]. Steps must not precede the current block.
  std::span<const double> at(std::size_t head, std::size_t step) {
    if (step < begin_ || step >= end_) {
      begin_ = step;
      end_ = std::min(c_.steps().size(), begin_ + static_cast<std::size_t>(rows_));
      const std::span<const Index> positions(c_.steps().data() + begin_, end_ - begin_);
      blocks_.clear();
      for (std::size_t h = 0; h < c_.heads(); ++h) {
        blocks_.push_back(c_.backend().exact_probabilities(c_.head(), c_.in_group(h), positions));
      }
    }
    return row_of(blocks_[head], step - begin_);
  }

 private:
  const StreamContext& c_;
  Index rows_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::vector<MatrixD> blocks_;
};

class StreamJob {
 public:
  StreamJob(const StreamContext& c, const Entry& entry)
      : c_(c),
        entry_(entry),
        variant_(c.plan().variant_of(c.unit(), entry)),
        n_(c.head().n()),
        sink_(std::min(c.plan().options.sink, n_)),
        recent_(std::min(c.plan().options.recent, n_)),
        exact_(std::min(sink_ + recent_, n_)),
        held_(n_),
        positions_(n_),
        z_(c.heads(), MatrixD(c.windows().queries, c.head().dv())),
        log_denominator_(c.heads()),
        figures_(c.heads(), HeldOverSteps(n_)),
        probabilities_(c) {
    std::iota(positions_.begin(), positions_.end(), Index{0});
    kept_steps_ =
        c.plan().options.kept ? kept_steps(c.plan().options, n_) : std::vector<Index>{n_ - 1};
    StreamTask task{c.head(),    recent_, std::nullopt, Rng(entry.seed, c.id(), variant_.name()),
                    c.backend(), sink_};
    if (entry.budget) {
      allowed_ = budget_bytes(*entry.budget, n_ * c.head().pair_bytes());
      const Index exact_bytes = exact_ * c.head().pair_bytes();
      if (*allowed_ < exact_bytes) {
        throw Infeasible(
            fmt::format("sinks and recent window need {} bytes, budget {} for the stream",
                        exact_bytes, *allowed_),
            exact_bytes);
      }
      task.budget_bytes = *allowed_ - exact_bytes;
    }
    const double start = seconds_now();
    if (n_ > exact_) {  // otherwise sinks and window hold all tokens
      cache_ = variant_.method->open_stream(task, variant_.params);
    }
    append_s_ = seconds_now() - start;
  }

  void run(JobResult& result) {
    result.steps.assign(c_.heads(), {});
    for (std::size_t s = 0; s < c_.steps().size(); ++s) {
      append_through(c_.steps()[s]);
      take_snapshot(s);
      if (batch_bytes_ > c_.backend().batch_bytes()) {
        attend(result);
      }
    }
    attend(result);
    for (std::size_t h = 0; h < c_.heads(); ++h) {
      finish(h, result.rows[h], result);
    }
    if (!c_.plan().options.export_caches.empty()) {
      result.cache = exported(c_.head(), view_, result.rows.front(), view_.degenerate);
    }
  }

 private:
  // What is held at a step, until its queries attend: at once on the CPU, in batches on a device.
  struct Snapshot {
    std::size_t step = 0;
    Range sinks;
    Range window;  // recent tokens without sinks
    Compressed view;
    Index bytes = 0;       // of sinks, window and view
    double seconds = 0.0;  // of view(), later also of the attention
    MatrixD queries;       // [group, d]
  };

  // Appends the tokens up to and including position `to`.
  void append_through(Index to) {
    const double start = seconds_now();
    for (; cache_ && next_ <= to; ++next_) {
      const Index leaving = next_ - recent_;
      cache_->append(next_, leaving >= sink_ ? leaving : -1);
    }
    append_s_ += seconds_now() - start;
  }

  // Appends a snapshot of step `s`. Throws std::logic_error if it exceeds the budget.
  void take_snapshot(std::size_t s) {
    const KvHead& head = c_.head();
    const Index position = c_.steps()[s];
    Snapshot now;
    now.step = s;
    now.sinks = {0, std::min(sink_, position + 1)};
    now.window = {std::max(now.sinks.end, position + 1 - recent_), position + 1};
    view_ = {};
    const double start = seconds_now();
    now.view = cache_ ? cache_->view() : Compressed{};
    now.seconds = seconds_now() - start;
    check_compressed(
        now.view,
        {head, positions({now.sinks.end, now.window.begin}), std::nullopt, {}, {}, Rng()});
    const MemoryFigures memory = memory_figures(now.view, head, n_);
    now.bytes = (now.sinks.size() + now.window.size()) * head.pair_bytes() + memory.middle_bytes;
    if (allowed_ && now.bytes > *allowed_) {
      throw std::logic_error(
          fmt::format("{} bytes held at position {}, budget {}", now.bytes, position, *allowed_));
    }
    peak_bytes_ = std::max(peak_bytes_, now.bytes);
    transient_bytes_ = std::max(transient_bytes_, now.view.transient_bytes);
    now.queries = queries_at(position);
    batch_bytes_ += host_bytes(now);
    snapshots_.push_back(std::move(now));
  }

  Index host_bytes(const Snapshot& m) const {
    const auto of = [](const HeldTokens& held, const MadeTokens& made) {
      return 12 * static_cast<Index>(held.tokens.size()) +
             4 * (made.k.rows() * (made.k.cols() + 1) + made.v.rows() * made.v.cols());
    };
    const auto& denominator = m.view.denominator;
    return of(m.view.held, m.view.made) + 8 * (m.sinks.size() + m.window.size()) +
           (denominator ? of(denominator->held, denominator->made) : 0) +
           8 * m.queries.rows() * (m.queries.cols() + 4 * c_.head().dv());
  }

  std::span<const Index> positions(Range range) const {
    return std::span<const Index>(positions_).subspan(range.begin, range.size());
  }

  // Rows to attend to: sinks, window, view. They point into `positions_` and the snapshot.
  std::vector<WeightedRows> rows_at(const Snapshot& m) {
    const KvHead& head = c_.head();
    Index longest = m.view.made.k.rows();
    if (m.view.denominator) {
      longest = std::max(longest, m.view.denominator->made.k.rows());
    }
    if (longest > n_) {
      throw std::logic_error(
          fmt::format("{} made tokens at position {}", longest, c_.steps()[m.step]));
    }
    std::vector<WeightedRows> out = weighted_rows(head, m.view, positions_, 1);
    const auto exact = [&](Range range) {
      return WeightedRows{head.k, head.v, positions(range), {}, 1.0F, SoftmaxPart::both, {}, true};
    };
    out.insert(out.begin(), {exact(m.sinks), exact(m.window)});
    return out;
  }

  // Attends at all snapshots, measures the outputs, and clears the snapshots.
  void attend(JobResult& result) {
    if (snapshots_.empty()) {
      return;
    }
    const double start = seconds_now();
    std::vector<SoftmaxSums> sums;
    std::vector<std::vector<WeightedRows>> all;
    sums.reserve(snapshots_.size());
    for (const Snapshot& m : snapshots_) {
      sums.emplace_back(m.queries, c_.head().dv(), c_.head().precision, c_.head().sink_logit);
      all.push_back(rows_at(m));
    }
    c_.backend().add_rows_to(c_.head(), sums, all);
    std::vector<MatrixD> z;
    for (const SoftmaxSums& s : sums) {
      z.push_back(s.output());
    }
    const double each = (seconds_now() - start) / static_cast<double>(snapshots_.size());
    for (std::size_t i = 0; i < snapshots_.size(); ++i) {
      snapshots_[i].seconds += each;
      measure(snapshots_[i], z[i], sums[i].log_denominator(), result);
    }
    view_ = std::move(snapshots_.back().view);
    snapshots_.clear();
    batch_bytes_ = 0;
  }

  void measure(const Snapshot& m, const MatrixD& z, const std::vector<double>& log_denominator,
               JobResult& result) {
    const Index position = c_.steps()[m.step];
    if (std::ranges::binary_search(kept_steps_, position)) {
      KeptSet set{position, {}};
      const std::vector<Index>& held = m.view.held.tokens;
      for (const std::span<const Index> part :
           {positions(m.sinks), std::span<const Index>(held), positions(m.window)}) {
        set.tokens.insert(set.tokens.end(), part.begin(), part.end());
      }
      result.kept.push_back(std::move(set));
    }
    for (std::size_t h = 0; h < c_.heads(); ++h) {
      const double error = query_error(c_.exact_output(h, m.step), row_of(z, in_group(h)));
      result.steps[h].push_back({position, error, m.bytes});
    }
    if (m.step >= c_.early()) {
      attend_s_ += m.seconds;
      add_figures(m, z, log_denominator);
    }
  }

  void add_figures(const Snapshot& m, const MatrixD& z,
                   const std::vector<double>& log_denominator) {
    std::fill(held_.begin(), held_.end(), std::uint8_t{0});
    for (const Range exact : {m.sinks, m.window}) {
      std::fill(held_.begin() + exact.begin, held_.begin() + exact.end, std::uint8_t{1});
    }
    for (const Index i : m.view.held.tokens) {
      held_[i] = 1;
    }
    for (std::size_t h = 0; h < c_.heads(); ++h) {
      const std::span<const double> from = row_of(z, in_group(h));
      std::copy(from.begin(), from.end(), z_[h].row(static_cast<Index>(m.step - c_.early())));
      log_denominator_[h].push_back(log_denominator[in_group(h)]);
      const double log_z = c_.truth(h).log_z[m.step - c_.early()];
      figures_[h].add(probabilities_.at(h, m.step), held_,
                      sink_share(c_.head(), c_.in_group(h), log_z));
    }
  }

  void finish(std::size_t h, Row& row, JobResult& result) const {
    fill(row, memory_figures(view_, c_.head(), n_ - exact_));
    row.peak_bytes = peak_bytes_;
    row.transient_bytes = transient_bytes_;
    fill(row, figures_[h].figures());
    row.compress_ms = 1e3 * append_s_;
    row.attend_us_per_query = 1e6 * attend_s_ / static_cast<double>(c_.windows().queries) /
                              static_cast<double>(c_.head().group());
    row.diag = diag_text(c_, entry_, view_.diag);
    add_outputs(c_, c_.truth(h), c_.norms(), z_[h], log_denominator_[h],
                exact_ == n_ ? "empty middle" : view_.degenerate, row, result);
  }

  std::size_t in_group(std::size_t h) const { return static_cast<std::size_t>(c_.in_group(h)); }

  // [group, d], scaled.
  MatrixD queries_at(Index position) const {
    const KvHead& head = c_.head();
    MatrixD out(head.group(), head.d());
    for (Index g = 0; g < head.group(); ++g) {
      scaled_query(head, g, position, out.row(g));
    }
    return out;
  }

  const StreamContext& c_;
  const Entry& entry_;
  const Variant& variant_;
  Index n_;
  Index sink_;
  Index recent_;
  Index exact_;  // tokens in sinks and window at the stream's end
  std::optional<Index> allowed_;
  std::unique_ptr<StreamCache> cache_;
  Index next_ = 0;  // position to append
  std::vector<Snapshot> snapshots_;
  Index batch_bytes_ = 0;
  Compressed view_;
  std::vector<std::uint8_t> held_;
  std::vector<Index> positions_;
  std::vector<MatrixD> z_;  // [--queries, dv], by head
  std::vector<std::vector<double>> log_denominator_;
  std::vector<HeldOverSteps> figures_;
  Probabilities probabilities_;
  std::vector<Index> kept_steps_;
  Index peak_bytes_ = 0;
  Index transient_bytes_ = 0;
  double append_s_ = 0.0;
  double attend_s_ = 0.0;
};

}  // namespace

MemoryNeed stream_memory_need(const LayerMeta& l, const ReplayOptions& o) {
  const auto steps = static_cast<Index>(stream_steps(o, l.n).size());
  const Index m = std::min(o.queries, l.n);
  const Index group = l.group();
  const Index blocks = (steps + kTruthBlock - 1) / kTruthBlock;
  MemoryNeed need;
  // Per query head mass, flags and outputs in float64.
  const Index unit_bytes =
      head_bytes(l) + 9 * group * l.n + 8 * group * steps * (l.dv + 2) + 24 * l.n;
  const Index element = bytes_per_element(o.precision);
  const Index estimate = query_block_bytes(element, group, std::min(l.n, kSetTokens));
  // Exact probabilities and their weights, lists of held tokens, outputs, and steps as text.
  const Index rows = std::max(kProbabilityRows, group);
  const Index thread_bytes =
      estimate + 8 * rows * l.n + query_block_bytes(element, rows / group, l.n) + 9 * group * l.n +
      kStreamListBytes * l.n + 8 * group * m * (l.dv + 1) + 1024 * group * steps + kStreamTextBytes;
  const Index kept_bytes = o.kept ? 24 * l.n * static_cast<Index>(kept_steps(o, l.n).size()) : 0;
  // A batch of steps with its lists; the last step may exceed the batch.
  const Index batch_bytes = o.on_device() ? 3 * (kGpuBatchBytes + 4 * l.n * (l.d + l.dv + 4)) : 0;
  need.unit = static_cast<std::uint64_t>(unit_bytes);
  need.per_thread = static_cast<std::uint64_t>(thread_bytes + kept_bytes + batch_bytes);
  // Weights of a block of queries, and a row of column sums for each block.
  need.opening =
      static_cast<std::uint64_t>(estimate + element * kTruthBlock * l.n + 9 * blocks * l.n);
  return need;
}

StreamContext::StreamContext(const Plan& plan, const Unit& unit, int threads,
                             std::optional<KvHead> head_read)
    : HeadInput(plan, unit, std::move(head_read)), steps_(stream_steps(plan.options, head().n())) {
  const Index m = windows().queries;
  early_ = steps_.size() - static_cast<std::size_t>(m);
  norms_ = value_norms(head(), m, threads);
  const std::vector<Index> last = positions_of({head().n() - m, head().n()});
  for (std::size_t h = 0; h < heads(); ++h) {
    truth_.push_back(backend().exact_attention(head(), in_group(h), last, threads));
    early_output_.push_back(
        early_ == 0 ? MatrixD(0, head().dv())
                    : backend()
                          .exact_attention(head(), in_group(h), {steps_.data(), early_}, threads)
                          .output);
  }
}

std::span<const double> StreamContext::exact_output(std::size_t h, std::size_t step) const {
  return step < early_ ? row_of(early_output_[h], step) : row_of(truth_[h].output, step - early_);
}

JobResult run_stream_job(const StreamContext& context, const Entry& entry) {
  return run_guarded(context, entry,
                     [&](JobResult& result) { StreamJob(context, entry).run(result); });
}

}  // namespace kvbench
