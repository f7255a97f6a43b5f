#include "replay/job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "attention/query_block.hpp"
#include "core/error.hpp"
#include "metrics/error.hpp"
#include "metrics/memory.hpp"
#include "replay/clock.hpp"
#include "replay/compressed_rows.hpp"
#include "replay/head_cache.hpp"
#include "replay/kept_heads.hpp"
#include "replay/loaded_caches.hpp"
#include "replay/query_head_sets.hpp"
#include "replay/row_parts.hpp"

namespace kvbench {

void require(bool good, const char* what) {
  if (!good) {
    throw std::logic_error(what);
  }
}

namespace {

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

// Fills `out`, whose rows are blank. `loaded`: evaluate; otherwise null.
void measure(const HeadContext& c, const Entry& entry, const ShareOrError* share,
             const LoadedCaches::Loaded* loaded, JobResult& out) {
  const Variant& variant = c.plan().variant_of(c.unit(), entry);
  const KvHead& head = c.head();
  Task task = c.job_task(entry, share);
  std::optional<Index> allowed = variant.allowed_bytes(task);
  ScoreBook::reset_charged_seconds();
  const double start = seconds_now();
  // One for all query heads of the group, or one for each.
  std::vector<Compressed> results(1);
  if (loaded != nullptr) {
    results.front() = loaded->compressed;
    allowed.reset();  // checked before the first row
  } else if (!task.tokens.empty() && variant.by_query_head()) {
    results = compress_by_query_head(
        variant, task, [&](Index g) { return std::span<const double>(c.truth(g).mass); });
  } else if (!task.tokens.empty()) {
    results.front() = variant.compress(task);
  }
  const double seconds = seconds_now() - start + ScoreBook::reset_charged_seconds();
  const double compress_ms = loaded != nullptr ? loaded->compress_ms : 1e3 * seconds;

  const std::string no_input = degenerate_reason(c, entry, task.tokens.empty());
  std::vector<MemoryFigures> memories;
  std::vector<std::vector<std::uint8_t>> held;
  std::vector<std::string> diags;
  std::vector<std::string> reasons;
  for (const Compressed& result : results) {
    check_compressed(result, task);
    memories.push_back(memory_figures(result, head, task.count(), c.windows().seen()));
    held.push_back(held_flags(c, {result.held.tokens, result.counted}));
    diags.push_back(diag_text(c, entry, result.diag));
    reasons.push_back(no_input.empty() ? result.degenerate : no_input);
  }

  const Index m = c.windows().queries;
  for (Row& row : out.rows) {
    const Index g = row.q_head - c.id().kv_head * head.group();
    const Index own = results.size() == 1 ? 0 : g;
    const Compressed& result = results[own];
    const MemoryFigures memory =
        results.size() == 1 ? memories.front()
                            : by_query_head(memories, own, head, task.count(), c.windows().seen());
    if (allowed && memory.middle_bytes > *allowed) {
      throw std::logic_error(
          fmt::format("{} bytes held for the middle, budget {}", memory.middle_bytes, *allowed));
    }
    const double attend_start = seconds_now();
    SoftmaxSums sums = c.base(g);
    add_compressed(c.backend(), sums, head, result);
    const MatrixD z = sums.output();
    row.attend_us_per_query = 1e6 * (seconds_now() - attend_start) / static_cast<double>(m);
    fill(row, memory);
    row.peak_bytes = memory.bytes;
    fill(row, held_figures(c.truth(g), held[own], c.sink_mass(g)));
    row.compress_ms = compress_ms;
    row.diag = diags[own];
    add_outputs(c, c.truth(g), c.norms(), z, sums.log_denominator(), reasons[own], row, out);
  }
  KeptSet set{head.n() - 1, {}};
  for (Index i = 0; i < head.n(); ++i) {
    if (held.front()[i] != 0) {
      set.tokens.push_back(i);
    }
  }
  out.kept.push_back(std::move(set));
  if (!c.plan().options.export_caches.empty()) {
    out.cache = exported(head, results.front(), out.rows.front(),
                         task.tokens.empty() ? "" : reasons.front());
  }
}

}  // namespace

HeadContext::HeadContext(const Plan& plan, const Unit& unit, int threads,
                         std::optional<KvHead> head_read)
    : HeadInput(plan, unit, std::move(head_read)) {
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

Task HeadContext::job_task(const Entry& entry, const ShareOrError* share) const {
  Task out = task(entry);
  if (plan().variant_of(unit(), entry).sees_evaluated()) {
    out.true_mass = group_mass_;
  }
  if (share != nullptr) {
    if (share->error) {
      std::rethrow_exception(share->error);
    }
    out.share = &share->share;
  }
  return out;
}

void check_compressed(const Compressed& result, const Task& task) {
  check_held(result.held, task);
  check_made(result.made, task, /*values=*/true);
  require(
      result.aux_bytes >= 0 && result.transient_bytes >= 0 && result.payload_bytes.value_or(0) >= 0,
      "byte counts of at least 0");
  require(result.quantized >= 0 && result.quantized <= result.made.k.rows(),
          "quantised tokens among the made ones");
  require(result.made.positions.empty() ||
              static_cast<Index>(result.made.positions.size()) == result.made.k.rows(),
          "a position for each made entry, or none");
  require(
      std::ranges::adjacent_find(result.counted, std::greater_equal<>()) == result.counted.end() &&
          std::ranges::includes(task.tokens, result.counted) &&
          static_cast<Index>(result.counted.size()) <= result.quantized,
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
    const LoadedCaches::Loaded loaded =
        plan.caches->read(plan, context.unit(), entry, context.head(), context.middle());
    for (Row& row : out.rows) {
      row.scoring_queries = loaded.scoring_queries;
    }
    if (!loaded.infeasible.empty()) {
      throw Infeasible(loaded.infeasible, 0);
    }
    if (!loaded.failed.empty()) {
      throw std::runtime_error(loaded.failed);
    }
    measure(context, entry, share, &loaded, out);
  });
}

namespace {

// Bytes of a job.
constexpr Index kListBytes = 40;  // per token: flags, positions and weights as the lists grow
constexpr Index kTextBytes = Index{1} << 18;  // rows before they are written

}  // namespace

MemoryNeed prefill_memory_need(const LayerMeta& l, const ReplayOptions& o) {
  const Index m = std::min(o.queries, l.nq);
  const Index group = l.group();
  const Index blocks = (m + kTruthBlock - 1) / kTruthBlock;
  MemoryNeed need;
  // Per query head mass, flags, queries and sums in float64.
  const Index element = bytes_per_element(o.precision);
  const Index heads = head_bytes(l) + 9 * group * l.n + 8 * group * m * (l.d + 2 * l.dv) + 24 * l.n;
  const Index estimate = query_block_bytes(element, kQueryBlock, std::min(l.n, kSetTokens)) +
                         16 * m * (l.dv + 2) + kTextBytes;
  need.unit = static_cast<std::uint64_t>(heads);
  // Weights of a block of queries, and a row of column sums for each block.
  need.opening =
      static_cast<std::uint64_t>(estimate + element * kTruthBlock * l.n + 9 * blocks * l.n);
  need.per_thread = static_cast<std::uint64_t>(estimate + kListBytes * l.n);
  return need;
}

}  // namespace kvbench
