#include "replay/job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "attention/query_block.hpp"
#include "core/error.hpp"
#include "core/value_range.hpp"
#include "metrics/error.hpp"
#include "metrics/memory.hpp"
#include "replay/given.hpp"
#include "replay/head_cache.hpp"
#include "replay/layer_errors.hpp"
#include "replay/row_parts.hpp"

namespace kvbench {
namespace {

void require(bool good, const char* what) {
  if (!good) {
    throw std::logic_error(what);
  }
}

void check_weights(const std::vector<float>& weights, std::size_t count) {
  require(weights.empty() || weights.size() == count, "as many weights as entries, or none");
  for (const float w : weights) {
    require(std::isfinite(w) && w >= 0.0F, "weights in [0, inf)");
  }
}

void check_held(const HeldTokens& held, const Task& task) {
  require(std::adjacent_find(held.tokens.begin(), held.tokens.end(), std::greater_equal<>()) ==
              held.tokens.end(),
          "held tokens strictly ascending");
  require(
      std::includes(task.tokens.begin(), task.tokens.end(), held.tokens.begin(), held.tokens.end()),
      "held tokens among the task's");
  check_weights(held.weights, held.tokens.size());
  check_weights({held.common}, 1);
}

void check_made(const MadeTokens& made, const Task& task, bool values) {
  const auto rows = static_cast<std::size_t>(made.k.rows());
  require(rows == 0 || made.k.cols() == task.head.d(), "made keys of width head_dim");
  require(!values || made.v.rows() == made.k.rows(), "a made value for each made key");
  require(!values || rows == 0 || made.v.cols() == task.head.dv(), "made values of width dv");
  check_weights(made.weights, rows);
  const auto finite = [](const Matrix& m) {
    return std::all_of(m.data(), m.data() + m.rows() * m.cols(),
                       [](float x) { return std::isfinite(x); });
  };
  require(finite(made.k) && finite(made.v), "made keys and values finite");
}

// The rows of a job that ran.
void measure(const HeadContext& c, const Entry& entry, const ShareOrError* share,
             const GivenCaches::Given* given, JobResult& out) {
  const Variant& variant = c.plan().variant_of(c.unit(), entry);
  const KvHead& head = c.head();
  Task task = c.task(entry);
  if (variant.sees_evaluated()) {
    task.true_mass = c.group_mass();
    task.evaluated = {head.n() - c.windows().queries, head.n()};
  }
  if (share != nullptr) {
    if (share->error) {
      std::rethrow_exception(share->error);
    }
    task.share = &share->share;
  }
  std::optional<Index> allowed = variant.allowed_bytes(task);
  if (given != nullptr) {
    task.given = &given->compressed;
    allowed.reset();  // checked before the first row, over all heads that share it
  }

  ScoreBook::take_charged_seconds();
  const double start = seconds_now();
  const bool ask = !task.tokens.empty() || given != nullptr;
  const Compressed result = ask ? variant.compress(task) : Compressed{};
  double compress_ms = 1e3 * (seconds_now() - start + ScoreBook::take_charged_seconds());
  if (given != nullptr) {
    compress_ms = given->compress_ms;
  }
  check_compressed(result, task);

  const MemoryFigures memory =
      memory_figures(holding_of(result), head, task.count(), c.windows().seen());
  if (allowed && memory.middle_bytes > *allowed) {
    throw std::logic_error(
        fmt::format("{} bytes held for the middle, budget {}", memory.middle_bytes, *allowed));
  }
  std::vector<std::uint8_t> held(head.n(), 0);
  for (const Range exact : {c.windows().sink, c.windows().recent}) {
    std::fill(held.begin() + exact.begin, held.begin() + exact.end, std::uint8_t{1});
  }
  for (const std::vector<Index>* list : {&result.held.tokens, &result.counted}) {
    for (const Index i : *list) {
      held[i] = 1;
    }
  }
  const std::string diag = diag_text(c, entry, result);
  std::string reason = unfair(c, entry, task.tokens.empty());
  if (reason.empty()) {
    reason = result.degenerate;
  }

  const Index m = c.windows().queries;
  for (Row& row : out.rows) {
    const Index g = row.q_head - c.id().kv_head * head.group();
    const double attend_start = seconds_now();
    SoftmaxSums sums = c.base(g);
    add_compressed(c.backend(), sums, head, result);
    Index degenerate = 0;
    const MatrixD z = sums.output(degenerate);
    row.attend_us_per_query = 1e6 * (seconds_now() - attend_start) / static_cast<double>(m);
    const ErrorFigures errors = error_figures(c.truth(g), c.norms(), z, sums.log_denominator());
    fill(row, memory);
    row.peak_bytes = memory.bytes;  // a prefill compresses once: what is left is its maximum
    fill(row, errors);
    fill(row, held_figures(c.truth(g), held, c.sink_mass(g)));
    row.compress_ms = compress_ms;
    row.status = status_of(errors, degenerate, m, reason);
    row.diag = diag;
    std::vector<double>& errors_of_row = out.query_errors.emplace_back();
    for (Index j = 0; j < m; ++j) {
      const auto width = static_cast<std::size_t>(head.dv());
      errors_of_row.push_back(query_error({c.truth(g).output.row(j), width}, {z.row(j), width}));
    }
    add_layer_part(c, row.q_head, c.truth(g).output, z, out.layer);
  }
  KeptSet set{head.n() - 1, {}};
  for (Index i = 0; i < head.n(); ++i) {
    if (held[i] != 0) {
      set.tokens.push_back(i);
    }
  }
  out.kept.push_back(std::move(set));
  if (!c.plan().options.export_caches.empty()) {
    out.cache = exported(head, result, out.rows.front(), task.tokens.empty() ? "" : reason);
  }
}

}  // namespace

Windows windows_of(const ReplayOptions& o, Index n, Index nq, Index window) {
  Windows w;
  w.queries = std::min(o.queries, nq);
  const Index first = window > 0 ? std::max<Index>(0, n - w.queries - window + 1) : 0;
  const Index sink = std::max(std::min(o.sink, n), first);
  const Index recent = std::max(sink, n - o.recent);
  w.sink = {std::min(first, sink), sink};
  w.middle = {sink, recent};
  w.recent = {recent, n};
  w.scoring = {n - nq, o.scores == Scores::all ? n : std::max(n - nq, n - w.queries)};
  return w;
}

std::vector<Index> positions_of(Range range) {
  std::vector<Index> out(range.size());
  std::iota(out.begin(), out.end(), range.begin);
  return out;
}

void check_range(const Plan& plan, const Unit& unit, const KvHead& head) {
  const ValueRange range = value_range(head);
  if (plan.options.precision == Precision::float32 && !fits_float32(range, head.scale, head.d())) {
    throw InputError(fmt::format(
        "{}: prompt {} layer {} KV head {}: keys up to {:.3g}, queries up to {:.3g}, values up to "
        "{:.3g}: their products leave the range of float32; expected --precision float64",
        plan.trace_names[unit.trace], plan.prompt_meta(unit).id, plan.layer_meta(unit).layer,
        unit.kv_head, range.key, range.query, range.value));
  }
}

namespace {

KvHead read_head(const Plan& plan, const Unit& unit) {
  KvHead head = plan.readers[unit.trace].read_head(unit.prompt, unit.layer, unit.kv_head);
  head.precision = plan.options.precision;
  return head;
}

}  // namespace

HeadInput::HeadInput(const Plan& plan, const Unit& unit)
    : plan_(plan),
      unit_(unit),
      id_{plan.prompt_meta(unit).id, plan.layer_meta(unit).layer, unit.kv_head},
      head_(read_head(plan, unit)),
      device_(plan.open_device ? plan.open_device(head_, plan.scratch_bytes) : nullptr),
      windows_(windows_of(plan.options, plan.layer_meta(unit))),
      book_(head_, backend(), seconds_now) {
  if (plan.reads_rope) {
    rope_ = plan.readers[unit.trace].read_rope(unit.prompt, unit.layer);
  }
  if (plan.reads_o_proj) {
    o_proj_ = plan.readers[unit.trace].read_o_proj(unit.prompt, unit.layer, unit.kv_head);
  }
  const AskedExtra asked = asked_extra(plan, unit);
  const TraceReader& reader = plan.readers[unit.trace];
  for (const std::string& name : asked.sets) {
    extra_.push_back(reader.read_extra(unit.prompt, unit.layer, name, unit.kv_head));
  }
  for (const std::string& name : asked.scores) {
    named_scores_.push_back(reader.read_scores(unit.prompt, unit.layer, name, unit.kv_head));
  }
  middle_ = positions_of(windows_.middle);
}

Task HeadInput::task(const Entry& entry) const {
  Task task{.head = head_,
            .tokens = middle_,
            .budget_bytes = {},
            .scoring = windows_.scoring,
            .true_mass = {},
            .rng = Rng(entry.seed, id_, plan_.variants[entry.variant].name()),
            .backend = backend()};
  if (entry.budget) {
    task.budget_bytes = budget_bytes(*entry.budget, task.count() * head_.pair_bytes());
  }
  task.scores = &book_;
  task.retrieval_heads = plan_.layer_meta(unit_).retrieval_heads;
  task.kv_head = id_.kv_head;
  task.fisher = plan_.layer_meta(unit_).fisher;
  task.sink = windows_.sink.end;
  task.rope = rope_.get();
  task.o_proj = o_proj_.rows() > 0 ? &o_proj_ : nullptr;
  task.extra = extra_;
  task.named_scores = named_scores_;
  return task;
}

HeadContext::HeadContext(const Plan& plan, const Unit& unit, int threads) : HeadInput(plan, unit) {
  const Index m = windows().queries;
  norms_ = value_norms(head(), m, threads);
  group_mass_.assign(head().n(), 0.0);
  queries_.reserve(head().group());
  const std::vector<Index> evaluated = positions_of({head().n() - m, head().n()});
  const std::vector<Index> sinks = positions_of(windows().sink);
  const std::vector<Index> recent = positions_of(windows().recent);
  for (Index g = 0; g < head().group(); ++g) {
    truth_.push_back(backend().exact_attention(head(), g, evaluated, threads));
    sink_mass_.push_back(kvbench::sink_mass(head(), g, truth_.back()));
    queries_.push_back(scaled_queries(head(), g, m));
    const std::vector<float> sink_logits = head().sink_logit.empty()
                                               ? std::vector<float>()
                                               : std::vector<float>(m, head().sink_logit[g]);
    base_.emplace_back(queries_.back(), head().dv(), head().precision, sink_logits);
    backend().add_rows_to(head(), {&base_.back(), 1},
                          {{{causal_rows(head(), sinks, m), causal_rows(head(), recent, m)}}});
    for (std::size_t i = 0; i < group_mass_.size(); ++i) {
      group_mass_[i] += truth_.back().mass[i] / static_cast<double>(head().group());
    }
  }
}

Index budget_bytes(double rho, Index full) {
  // 0.29 * 100 is 28.999999999999996: a product that is a whole number but for its rounding counts
  // as that number.
  const double bytes = rho * static_cast<double>(full);
  const double nearest = std::round(bytes);
  const bool whole = std::abs(bytes - nearest) <= 4e-16 * static_cast<double>(full);
  return static_cast<Index>(whole ? nearest : std::floor(bytes));
}

void check_compressed(const Compressed& result, const Task& task) {
  check_held(result.held, task);
  check_made(result.made, task, /*values=*/true);
  require(
      result.aux_bytes >= 0 && result.transient_bytes >= 0 && result.payload_bytes.value_or(0) >= 0,
      "byte counts of at least 0");
  require(result.quantised >= 0 && result.quantised <= result.made.k.rows(),
          "quantised tokens among the made ones");
  require(result.made.positions.empty() ||
              static_cast<Index>(result.made.positions.size()) == result.made.k.rows(),
          "a position for each made entry, or none");
  require(
      std::ranges::adjacent_find(result.counted, std::greater_equal<>()) == result.counted.end() &&
          std::ranges::includes(task.tokens, result.counted) &&
          static_cast<Index>(result.counted.size()) <= result.quantised,
      "counted tokens ascending, the task's, and among the quantised");
  if (result.denominator) {
    check_held(result.denominator->held, task);
    check_made(result.denominator->made, task, /*values=*/false);
    require(!result.denominator->same_keys || result.denominator->held.tokens == result.held.tokens,
            "same_keys only where both sets hold the same tokens");
  }
}

JobResult run_job(const HeadContext& context, const Entry& entry, const ShareOrError* share) {
  return run_guarded(context, entry, [&](JobResult& out) {
    const Plan& plan = context.plan();
    if (!plan.caches) {
      measure(context, entry, share, nullptr, out);
      return;
    }
    const GivenCaches::Given given =
        plan.caches->read(plan, context.unit(), entry, context.head(), context.middle());
    for (Row& row : out.rows) {
      row.scoring_queries = given.scoring_queries;
    }
    if (!given.infeasible.empty()) {
      throw Infeasible(given.infeasible, 0);
    }
    if (!given.failed.empty()) {
      throw std::runtime_error(given.failed);
    }
    measure(context, entry, share, &given, out);
  });
}

namespace {

// Of a job, for each token: what is held, at which place and with which weight, twice as they grow.
constexpr Index kListBytes = 40;
constexpr Index kTextBytes = Index{1} << 18;  // rows and what waits to be written

}  // namespace

MemoryNeed memory_need(const LayerMeta& l, const ReplayOptions& o) {
  const Index m = std::min(o.queries, l.nq);
  const Index group = l.group();
  const Index blocks = (m + kTruthBlock - 1) / kTruthBlock;
  MemoryNeed need;
  // Keys, values, queries in float32; per query head the mass and flags, the queries and sums in
  // float64.
  const Index element = bytes_per_element(o.precision);
  const Index heads = 4 * (l.n * (l.d + l.dv) + group * l.nq * l.d) + 9 * group * l.n +
                      8 * group * m * (l.d + 2 * l.dv) + 24 * l.n;
  // The estimator's block stays with a thread.
  const Index estimate = query_block_bytes(o.precision, kQueryBlock, std::min(l.n, kSetTokens)) +
                         16 * m * (l.dv + 2) + kTextBytes;
  need.unit = static_cast<std::uint64_t>(heads);
  // The weights of a block of queries, and a row of column sums for each block.
  need.opening =
      static_cast<std::uint64_t>(estimate + element * kTruthBlock * l.n + 9 * blocks * l.n);
  need.per_thread = static_cast<std::uint64_t>(estimate + kListBytes * l.n);
  return need;
}

}  // namespace kvbench
