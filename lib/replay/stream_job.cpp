#include "replay/stream_job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>

#include "core/error.hpp"
#include "metrics/amnesia.hpp"
#include "metrics/error.hpp"
#include "metrics/memory.hpp"
#include "replay/row_parts.hpp"

namespace kvbench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Every j below n that is `last` or beyond, or ends a stretch of --eval-every tokens.
std::vector<Index> steps_until(Index last, const ReplayOptions& o, Index n) {
  const Index every = o.eval_every > 0 ? o.eval_every : std::max<Index>(1, n / 64);
  std::vector<Index> out;
  for (Index j = 0; j < n; ++j) {
    if (j >= last || (j + 1) % every == 0) {
      out.push_back(j);
    }
  }
  return out;
}

std::span<const double> row_of(const MatrixD& m, std::size_t r) {
  return {m.row(static_cast<Index>(r)), static_cast<std::size_t>(m.cols())};
}

// Rows of exact probabilities that a job has at a time of each query head: over the group as many
// as one block of the ground truth has. Neither this nor how many queries attend together depends
// on which query heads are replayed: the last bit of a row would.
Index probability_rows(Index group) {
  return std::max<Index>(1, kQueryBlock / group);
}

// Exact probabilities of the evaluated queries, for all query heads a block of queries at a time.
class Probabilities {
 public:
  explicit Probabilities(const StreamContext& c)
      : c_(c), rows_(probability_rows(c.head().group())) {}

  // Of replayed head `head` at step number `step`; steps must not go back before the last block.
  std::span<const double> at(std::size_t head, std::size_t step) {
    if (step < begin_ || step >= end_) {
      begin_ = step;
      end_ = std::min(c_.steps().size(), begin_ + static_cast<std::size_t>(rows_));
      const std::span<const Index> positions(c_.steps().data() + begin_, end_ - begin_);
      blocks_.clear();
      for (std::size_t h = 0; h < c_.heads(); ++h) {
        blocks_.push_back(exact_probabilities(c_.head(), c_.in_group(h), positions));
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

// One entry's life through the stream.
class StreamJob {
 public:
  StreamJob(const StreamContext& c, const Entry& entry)
      : c_(c),
        variant_(c.plan().variants[entry.variant]),
        recent_(c.plan().options.recent),
        n_(c.head().n()),
        window_(std::min(recent_, n_)),
        held_(static_cast<std::size_t>(n_)),
        positions_(static_cast<std::size_t>(n_)),
        z_(c.heads(), MatrixD(c.windows().queries, c.head().dv())),
        log_denominator_(c.heads()),
        figures_(c.heads(), HeldOverSteps(n_)),
        probabilities_(c) {
    std::iota(positions_.begin(), positions_.end(), Index{0});
    if (c.plan().options.kept) {
      kept_steps_ = kept_steps(c.plan().options, n_);
    }
    StreamTask task{c.head(), recent_, std::nullopt, Rng(entry.seed, c.id(), variant_.name())};
    if (entry.budget) {
      allowed_ = budget_bytes(*entry.budget, n_ * c.head().pair_bytes());
      const Index window_bytes = window_ * c.head().pair_bytes();
      if (*allowed_ < window_bytes) {
        throw Infeasible(fmt::format("the recent window needs {} bytes, budget {} for the stream",
                                     window_bytes, *allowed_),
                         window_bytes);
      }
      task.budget_bytes = *allowed_ - window_bytes;
    }
    const auto start = Clock::now();
    if (n_ > recent_) {  // else nothing ever leaves the window
      cache_ = variant_.method->open_stream(task, variant_.params);
    }
    append_s_ = seconds_since(start);
  }

  void run(StreamResult& result) {
    result.steps.assign(c_.heads(), {});
    for (std::size_t s = 0; s < c_.steps().size(); ++s) {
      arrive(c_.steps()[s]);
      step(s, result);
    }
    for (std::size_t h = 0; h < c_.heads(); ++h) {
      finish(h, result.rows[h]);
    }
  }

 private:
  // Appends what has come up to and with position `to`.
  void arrive(Index to) {
    const auto start = Clock::now();
    for (; cache_ && next_ <= to; ++next_) {
      cache_->append(next_, next_ >= recent_ ? next_ - recent_ : -1);
    }
    append_s_ += seconds_since(start);
  }

  void step(std::size_t s, StreamResult& result) {
    const KvHead& head = c_.head();
    const Index position = c_.steps()[s];
    const Range window{std::max<Index>(0, position + 1 - recent_), position + 1};
    const std::span<const Index> all(positions_);
    const auto left = static_cast<std::size_t>(window.begin);

    auto start = Clock::now();
    view_ = cache_ ? cache_->view() : Compressed{};
    double attend_s = seconds_since(start);
    check_compressed(view_, {head, all.first(left), std::nullopt, {}, {}, Rng()});
    // Beside the window, as if what left it were the whole sequence.
    const MemoryFigures memory = memory_figures(holding_of(view_), head, n_);
    const Index bytes = window.size() * head.pair_bytes() + memory.middle_bytes;
    if (allowed_ && bytes > *allowed_) {
      throw std::logic_error(
          fmt::format("{} bytes held at position {}, budget {}", bytes, position, *allowed_));
    }
    peak_bytes_ = std::max(peak_bytes_, bytes);
    transient_bytes_ = std::max(transient_bytes_, view_.transient_bytes);

    start = Clock::now();
    const MatrixD queries = queries_at(position);
    SoftmaxSums sums(queries, head.dv());
    sums.add_rows(head.k, head.v, all.subspan(left, static_cast<std::size_t>(window.size())), {},
                  1.0F, Part::both);
    add_compressed(sums, head, view_);
    Index degenerate = 0;
    const MatrixD z = sums.output(degenerate);
    attend_s += seconds_since(start);

    if (kept_step_ < kept_steps_.size() && kept_steps_[kept_step_] == position) {
      ++kept_step_;
      KeptSet set{position, view_.held.tokens};  // of what has left the window
      for (Index i = window.begin; i < window.end; ++i) {
        set.tokens.push_back(i);
      }
      result.kept.push_back(std::move(set));
    }
    for (std::size_t h = 0; h < c_.heads(); ++h) {
      const double error = query_error(c_.exact_output(h, s), row_of(z, in_group(h)));
      result.steps[h].push_back({position, error, bytes});
    }
    if (s >= c_.early()) {
      attend_s_ += attend_s;
      keep(s, window, z, sums.log_denominator());
    }
  }

  // A step of which the row's figures are made.
  void keep(std::size_t s, Range window, const MatrixD& z, const std::vector<double>& log_d) {
    std::fill(held_.begin(), held_.end(), std::uint8_t{0});
    std::fill(held_.begin() + window.begin, held_.begin() + window.end, std::uint8_t{1});
    for (const Index i : view_.held.tokens) {
      held_[static_cast<std::size_t>(i)] = 1;
    }
    for (std::size_t h = 0; h < c_.heads(); ++h) {
      const std::span<const double> from = row_of(z, in_group(h));
      std::copy(from.begin(), from.end(), z_[h].row(static_cast<Index>(s - c_.early())));
      log_denominator_[h].push_back(log_d[in_group(h)]);
      figures_[h].add(probabilities_.at(h, s), held_);
    }
  }

  void finish(std::size_t h, Row& row) const {
    const Index m = c_.windows().queries;
    const ErrorFigures errors = error_figures(c_.truth(h), c_.norms(), z_[h], log_denominator_[h]);
    fill(row, memory_figures(holding_of(view_), c_.head(), n_ - window_));
    row.peak_bytes = peak_bytes_;
    row.transient_bytes = transient_bytes_;
    fill(row, errors);
    fill(row, figures_[h].figures());
    row.compress_ms = 1e3 * append_s_;
    row.attend_us_per_query =
        1e6 * attend_s_ / (static_cast<double>(m) * static_cast<double>(c_.head().group()));
    const auto degenerate = std::count_if(log_denominator_[h].begin(), log_denominator_[h].end(),
                                          [](double x) { return !std::isfinite(x); });
    row.status = status_of(errors, degenerate, m, n_ <= recent_);
    row.diag = diag_text(view_);
  }

  std::size_t in_group(std::size_t h) const { return static_cast<std::size_t>(c_.in_group(h)); }

  // [group, d] in float64, times the scale.
  MatrixD queries_at(Index position) const {
    const KvHead& head = c_.head();
    MatrixD out(head.group(), head.d());
    for (Index g = 0; g < head.group(); ++g) {
      const float* from = head.q[static_cast<std::size_t>(g)].row(position);
      std::transform(from, from + head.d(), out.row(g),
                     [&](float x) { return static_cast<double>(x) * head.scale; });
    }
    return out;
  }

  const StreamContext& c_;
  const Variant& variant_;
  Index recent_;
  Index n_;
  Index window_;  // tokens in the window at the stream's end
  std::optional<Index> allowed_;
  std::unique_ptr<StreamCache> cache_;
  Index next_ = 0;  // position to append
  Compressed view_;
  std::vector<std::uint8_t> held_;
  std::vector<Index> positions_;
  std::vector<MatrixD> z_;  // per head, of the last --queries
  std::vector<std::vector<double>> log_denominator_;
  std::vector<HeldOverSteps> figures_;
  Probabilities probabilities_;
  std::vector<Index> kept_steps_;
  std::size_t kept_step_ = 0;  // the next of them
  Index peak_bytes_ = 0;
  Index transient_bytes_ = 0;
  double append_s_ = 0.0;
  double attend_s_ = 0.0;
};

}  // namespace

std::vector<Index> stream_steps(const ReplayOptions& o, Index n) {
  return steps_until(n - std::min(o.queries, n), o, n);
}

std::vector<Index> kept_steps(const ReplayOptions& o, Index n) {
  return o.protocol == "stream" ? steps_until(n - 1, o, n) : std::vector<Index>{n - 1};
}

StreamContext::StreamContext(const Plan& plan, const Unit& unit, int threads)
    : HeadInput(plan, unit), steps_(stream_steps(plan.options, head().n())) {
  const Index m = windows().queries;
  early_ = steps_.size() - static_cast<std::size_t>(m);
  norms_ = value_norms(head(), m, threads);
  for (std::size_t h = 0; h < heads(); ++h) {
    truth_.push_back(exact_attention(head(), in_group(h), m, threads));
    early_output_.push_back(
        early_ == 0
            ? MatrixD(0, head().dv())
            : exact_attention(head(), in_group(h), {steps_.data(), early_}, threads).output);
  }
}

std::span<const double> StreamContext::exact_output(std::size_t h, std::size_t step) const {
  return step < early_ ? row_of(early_output_[h], step) : row_of(truth_[h].output, step - early_);
}

StreamResult run_stream_job(const StreamContext& context, const Entry& entry) {
  StreamResult result;
  const auto start_anew = [&] {
    result.rows.clear();
    for (const Index q_head : context.unit().q_heads) {
      result.rows.push_back(blank_row(context, entry, q_head));
    }
    result.steps.assign(result.rows.size(), {});
    result.kept.clear();
  };
  start_anew();
  try {
    StreamJob(context, entry).run(result);
  } catch (const std::exception& e) {
    start_anew();
    for (Row& row : result.rows) {
      row.status = status_of_error(e);
    }
  }
  return result;
}

MemoryNeed stream_memory_need(const LayerMeta& l, const ReplayOptions& o) {
  const auto steps = static_cast<Index>(stream_steps(o, l.n).size());
  const Index m = std::min(o.queries, l.n);
  const Index group = l.group();
  const Index blocks = (steps + kQueryBlock - 1) / kQueryBlock;
  MemoryNeed need;
  // Keys, values, queries in float32; per query head the mass and flags and the outputs in
  // float64; one column-sum row per block of queries.
  const Index unit_bytes = 4 * (l.n * (l.d + l.dv) + group * l.nq * l.d) + 9 * group * l.n +
                           8 * group * steps * (l.dv + 2) + 9 * blocks * l.n + 24 * l.n;
  // The truth's logits of one block of queries; or a job's cache and what it shows of it, its
  // probabilities twice, its outputs, and its steps as text.
  const Index block = std::max(kQueryBlock, group);
  const Index thread_bytes = std::max(
      8 * kQueryBlock * l.n, 8 * l.n * (l.d + l.dv) + 16 * block * l.n + 9 * group * l.n +
                                 60 * l.n + 8 * group * m * (l.dv + 1) + 1024 * group * steps +
                                 8 * 512 * (l.d + l.dv + group) + (Index{1} << 22));
  const Index kept_bytes =
      o.kept ? 24 * l.n * static_cast<Index>(kept_steps(o, l.n).size()) : 0;  // sets, and as text
  need.unit = static_cast<std::uint64_t>(unit_bytes);
  need.per_thread = static_cast<std::uint64_t>(thread_bytes + kept_bytes);
  return need;
}

}  // namespace kvbench
