#include "replay/job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "core/error.hpp"
#include "metrics/amnesia.hpp"
#include "metrics/error.hpp"
#include "metrics/memory.hpp"

namespace kvbench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

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

void add_set(SoftmaxSums& sums, const KvHead& head, const HeldTokens& held, const MadeTokens& made,
             Part part) {
  sums.add_rows(head.k, head.v, held.tokens, held.weights, held.common, part);
  std::vector<Index> rows(static_cast<std::size_t>(made.k.rows()));
  std::iota(rows.begin(), rows.end(), Index{0});
  sums.add_rows(made.k, made.v, rows, made.weights, 1.0F, part);
}

Holding holding_of(const Compressed& c) {
  Holding out;
  out.pairs = static_cast<Index>(c.held.tokens.size());
  out.made_pairs = c.made.k.rows();
  if (c.denominator) {
    out.keys_only =
        c.denominator->made.k.rows() +
        (c.denominator->same_keys ? 0 : static_cast<Index>(c.denominator->held.tokens.size()));
  }
  out.aux_bytes = c.aux_bytes;
  out.payload_bytes = c.payload_bytes;
  out.transient_bytes = c.transient_bytes;
  return out;
}

void fill(Row& row, const MemoryFigures& f) {
  row.tokens_kept = f.tokens_kept;
  row.bytes = f.bytes;
  row.full_bytes = f.full_bytes;
  row.ratio = f.ratio;
  row.middle_ratio = f.middle_ratio;
  row.aux_bytes = f.aux_bytes;
  row.peak_bytes = f.bytes;  // a prefill compresses once: what is left is the most it holds
  row.transient_bytes = f.transient_bytes;
}

void fill(Row& row, const ErrorFigures& f) {
  row.rel_error = f.rel_error;
  row.rel_error_mean = f.rel_error_mean;
  row.rel_error_p50 = f.rel_error_p50;
  row.rel_error_p95 = f.rel_error_p95;
  row.rel_error_max = f.rel_error_max;
  row.eps_fro = f.eps_fro;
  row.eps_op = f.eps_op;
  row.log_z_error = f.log_z_error;
  row.cosine = f.cosine;
}

void fill(Row& row, const HeldFigures& f) {
  row.mass_kept = f.mass_kept;
  row.amnesia_count = f.amnesia_count;
  row.amnesia_mass = f.amnesia_mass;
}

std::string status_of(const ErrorFigures& errors, Index degenerate, Index m, bool empty_middle) {
  if (degenerate > 0) {
    return fmt::format("degenerate: denominator is 0 or not finite for {} of {} queries",
                       degenerate, m);
  }
  if (errors.infinite > 0) {
    return fmt::format(
        "degenerate: exact output is 0 and the estimate is not, for {} of {} queries",
        errors.infinite, m);
  }
  return empty_middle ? "ok: empty middle" : "ok";
}

// One line and no separators of its own, whatever an exception says.
std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return text;
}

Row blank_row(const HeadContext& c, const Entry& entry, Index q_head) {
  const ReplayOptions& o = c.plan().options;
  const Variant& variant = c.plan().variants[entry.variant];
  Row row;
  row.trace = c.plan().trace_names[c.unit().trace];
  row.prompt = c.id().prompt;
  row.layer = c.id().layer;
  row.q_head = q_head;
  row.kv_head = c.id().kv_head;
  row.algorithm = variant.method->info.name;
  row.params = variant.params.canonical();
  row.protocol = o.protocol;
  row.sink = o.sink;
  row.recent = o.recent;
  row.scores = o.scores;
  row.device = o.device;
  row.seed = entry.seed;
  row.n_tokens = c.head().n();
  row.n_queries = c.windows().queries;
  row.budget_requested = entry.budget;
  row.full_bytes = c.head().n() * c.head().pair_bytes();
  return row;
}

// The rows of a job that ran.
void measure(const HeadContext& c, const Entry& entry, std::vector<Row>& rows) {
  const Variant& variant = c.plan().variants[entry.variant];
  const KvHead& head = c.head();
  Task task{head,         c.middle(),
            std::nullopt, c.windows().scoring,
            {},           Rng(entry.seed, c.id(), variant.method->info.name)};
  const Index middle_full = task.count() * head.pair_bytes();
  if (entry.budget) {
    task.budget_bytes = budget_bytes(*entry.budget, middle_full);
  }
  if (variant.method->info.sees_evaluated) {
    task.true_mass = c.group_mass();
  }

  const auto start = Clock::now();
  const Compressed result =
      task.tokens.empty() ? Compressed{} : variant.method->compress(task, variant.params);
  const double compress_ms = 1e3 * seconds_since(start);
  check_compressed(result, task);

  const MemoryFigures memory = memory_figures(holding_of(result), head, task.count());
  if (task.budget_bytes && memory.middle_bytes > *task.budget_bytes) {
    throw std::logic_error(fmt::format("{} bytes held for the middle, budget {}",
                                       memory.middle_bytes, *task.budget_bytes));
  }
  std::vector<std::uint8_t> held(static_cast<std::size_t>(head.n()), 1);
  for (const Index i : c.middle()) {
    held[static_cast<std::size_t>(i)] = 0;
  }
  for (const Index i : result.held.tokens) {
    held[static_cast<std::size_t>(i)] = 1;
  }
  std::string diag;
  for (const auto& [key, value] : result.diag) {
    diag += fmt::format("{}{}={}", diag.empty() ? "" : ";", key, value);
  }

  const Index m = c.windows().queries;
  for (Row& row : rows) {
    const Index g = row.q_head - c.id().kv_head * head.group();
    const auto attend_start = Clock::now();
    SoftmaxSums sums = c.base(g);
    add_set(sums, head, result.held, result.made,
            result.denominator ? Part::numerator : Part::both);
    if (result.denominator) {
      add_set(sums, head, result.denominator->held, result.denominator->made, Part::denominator);
    }
    Index degenerate = 0;
    const MatrixD z = sums.output(degenerate);
    row.attend_us_per_query = 1e6 * seconds_since(attend_start) / static_cast<double>(m);
    const ErrorFigures errors = error_figures(c.truth(g), c.norms(), z, sums.log_denominator());
    fill(row, memory);
    fill(row, errors);
    fill(row, held_figures(c.truth(g), held));
    row.compress_ms = compress_ms;
    row.status = status_of(errors, degenerate, m, task.tokens.empty());
    row.diag = diag;
  }
}

}  // namespace

Windows windows_of(const ReplayOptions& o, Index n, Index nq) {
  Windows w;
  w.queries = std::min(o.queries, nq);
  const Index sink = std::min(o.sink, n);
  const Index recent = std::max(sink, n - o.recent);
  w.sink = {0, sink};
  w.middle = {sink, recent};
  w.recent = {recent, n};
  w.scoring = {n - nq, o.scores == "all" ? n : std::max(n - nq, n - w.queries)};
  return w;
}

HeadContext::HeadContext(const Plan& plan, const Unit& unit, int threads)
    : plan_(plan),
      unit_(unit),
      id_{plan.prompt_meta(unit).id, plan.layer_meta(unit).layer, unit.kv_head},
      head_(plan.readers[unit.trace].read_head(unit.prompt, unit.layer, unit.kv_head)),
      windows_(windows_of(plan.options, head_.n(), head_.nq())) {
  middle_.resize(static_cast<std::size_t>(windows_.middle.size()));
  std::iota(middle_.begin(), middle_.end(), windows_.middle.begin);
  norms_ = value_norms(head_, windows_.queries, threads);
  group_mass_.assign(static_cast<std::size_t>(head_.n()), 0.0);
  queries_.reserve(static_cast<std::size_t>(head_.group()));
  for (Index g = 0; g < head_.group(); ++g) {
    truth_.push_back(exact_attention(head_, g, windows_.queries, threads));
    queries_.push_back(scaled_queries(head_, g, windows_.queries));
    base_.emplace_back(queries_.back(), head_.dv());
    base_.back().add_causal(head_, windows_.sink);
    base_.back().add_causal(head_, windows_.recent);
    for (std::size_t i = 0; i < group_mass_.size(); ++i) {
      group_mass_[i] += truth_.back().mass[i] / static_cast<double>(head_.group());
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
  if (result.denominator) {
    check_held(result.denominator->held, task);
    check_made(result.denominator->made, task, /*values=*/false);
    require(!result.denominator->same_keys || result.denominator->held.tokens == result.held.tokens,
            "same_keys only where both sets hold the same tokens");
  }
}

std::vector<Row> run_job(const HeadContext& context, const Entry& entry) {
  std::vector<Row> rows;
  for (const Index q_head : context.unit().q_heads) {
    rows.push_back(blank_row(context, entry, q_head));
  }
  const auto set_status = [&](const std::string& status) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i] = blank_row(context, entry, context.unit().q_heads[i]);
      rows[i].status = status;
    }
  };
  try {
    measure(context, entry, rows);
  } catch (const Infeasible& e) {
    set_status(fmt::format("infeasible: {}", one_line(e.what())));
  } catch (const std::exception& e) {
    set_status(fmt::format("failed: {}", one_line(e.what())));
  }
  return rows;
}

MemoryNeed memory_need(const LayerMeta& l, Index queries) {
  const Index m = std::min(queries, l.nq);
  const Index group = l.group();
  const Index blocks = (m + kQueryBlock - 1) / kQueryBlock;
  MemoryNeed need;
  // Keys, values, queries in float32; per query head the mass and flags, the queries and sums in
  // float64; one column-sum row per block of queries.
  const Index unit_bytes = 4 * (l.n * (l.d + l.dv) + group * l.nq * l.d) + 9 * group * l.n +
                           8 * group * m * (l.d + 2 * l.dv) + 9 * blocks * l.n + 24 * l.n;
  // The truth's logits of one block of queries, or a job's copy of keys and values and its sums.
  const Index thread_bytes =
      std::max(8 * kQueryBlock * l.n,
               4 * l.n * (l.d + l.dv) + 40 * l.n + 8 * m * (l.dv + 2 * 512) + (Index{1} << 22));
  need.unit = static_cast<std::uint64_t>(unit_bytes);
  need.per_thread = static_cast<std::uint64_t>(thread_bytes);
  return need;
}

}  // namespace kvbench
