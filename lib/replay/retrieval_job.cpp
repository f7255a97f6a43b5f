#include "replay/retrieval_job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "algorithms/stored.hpp"
#include "metrics/error.hpp"
#include "metrics/memory.hpp"
#include "metrics/read_figures.hpp"
#include "replay/clock.hpp"
#include "replay/compressed_rows.hpp"
#include "replay/row_parts.hpp"

namespace kvbench {
namespace {

// Tokens of the fixed set that are whole tokens of the cache.
std::vector<Index> fixed_tokens(const Reads& reads) {
  if (!reads.fixed) {
    return {};
  }
  std::vector<Index> out = reads.fixed->held.tokens;
  out.insert(out.end(), reads.fixed->counted.begin(), reads.fixed->counted.end());
  std::ranges::sort(out);
  return out;
}

Compressed coded_as_made(const CodedEntries& coded) {
  Compressed out;
  out.made = {coded.k, coded.v, {}};
  out.quantized = coded.k.rows();
  out.payload_bytes = coded.bytes.codes;
  out.aux_bytes = coded.bytes.scales;
  return out;
}

struct FixedBytes {
  Index read = 0;   // by every query
  Index index = 0;  // of these, what is no whole token of the cache
};

FixedBytes fixed_bytes(const Reads& reads, const KvHead& head, Index middle) {
  if (!reads.fixed) {
    return {};
  }
  const Index read = memory_figures(*reads.fixed, head, middle).middle_bytes;
  return {read, read - static_cast<Index>(reads.fixed->held.tokens.size()) * head.pair_bytes()};
}

// Columns of the retrieval protocol.
struct ReadColumns {
  std::optional<double> read_bytes;
  std::optional<double> read_ratio;
  std::optional<Index> index_bytes;
  std::optional<double> recall;
};

class RetrievalJob {
 public:
  RetrievalJob(const HeadContext& c, const Entry& entry, const ShareOrError* share)
      : c_(c),
        entry_(entry),
        variant_(c.plan().variant_of(c.unit(), entry)),
        task_(c.job_task(entry, share)),
        m_(c.windows().queries) {}

  void run(JobResult& out) {
    std::unique_ptr<ReadIndex> index;
    ScoreBook::reset_charged_seconds();
    double start = seconds_now();
    if (!task_.tokens.empty()) {
      index = variant_.method->open_reads(task_, variant_.params);
    }
    compress_ms_ = 1e3 * (seconds_now() - start + ScoreBook::reset_charged_seconds());
    start = seconds_now();
    if (index != nullptr) {
      reads_ = index->search();
      index.reset();
    }
    search_s_ = seconds_now() - start;
    check_reads(reads_, task_);
    fixed_ = fixed_bytes(reads_, c_.head(), task_.count());
    fixed_tokens_ = fixed_tokens(reads_);
    for (Row& row : out.rows) {
      measure(row, out);
    }
  }

 private:
  void measure(Row& row, JobResult& out) const {
    const KvHead& head = c_.head();
    const Index g = row.q_head - c_.id().kv_head * head.group();
    const double read = read_bytes(g);
    check_budget(read);
    const double start = seconds_now();
    SoftmaxSums sums = c_.base(g);
    if (reads_.fixed) {
      add_compressed(c_.backend(), sums, head, *reads_.fixed);
    }
    if (!reads_.lists.empty()) {
      const TokenRows rows = reads_.coded
                                 ? TokenRows{reads_.coded->k, reads_.coded->v, task_.tokens}
                                 : TokenRows{head.k, head.v, {}};
      add_read(rows, g, reads_.lists, sums);
    }
    const MatrixD z = sums.output();
    const double queries = static_cast<double>(m_);
    row.attend_us_per_query = 1e6 * ((seconds_now() - start) / queries +
                                     search_s_ / (queries * static_cast<double>(head.group())));
    row.compress_ms = compress_ms_;
    const Index index = reads_.index_bytes + fixed_.index;
    Compressed whole;
    if (reads_.coded) {
      whole.quantized = task_.count();
      whole.payload_bytes = reads_.coded->bytes.codes;
      whole.aux_bytes = reads_.coded->bytes.scales;
    } else {
      whole.held.tokens.assign(task_.tokens.begin(), task_.tokens.end());
    }
    whole.aux_bytes += index;
    whole.transient_bytes = reads_.fixed ? reads_.fixed->transient_bytes : 0;
    const MemoryFigures memory = memory_figures(whole, head, task_.count(), c_.windows().seen());
    fill(row, memory);
    row.peak_bytes = memory.bytes;
    fill_read(g, read, index, row);
    row.diag = diag_text(c_, entry_, reads_.diag);
    const std::string reason = degenerate_reason(c_, entry_, task_.tokens.empty());
    add_outputs(c_, c_.truth(g), c_.norms(), z, sums.log_denominator(),
                reason.empty() ? reads_.degenerate : reason, row, out);
  }

  // Bytes read of the middle, mean over the queries of a query head.
  double read_bytes(Index g) const {
    Index tokens = 0;
    for (Index j = 0; j < m_ && !reads_.lists.empty(); ++j) {
      tokens += static_cast<Index>(reads_.lists.at(g, j).size());
    }
    return static_cast<double>(reads_.index_bytes_read() + fixed_.read) +
           static_cast<double>(tokens * token_bytes()) / static_cast<double>(m_);
  }

  Index token_bytes() const {
    return reads_.coded ? coded_token_bytes(*reads_.coded) : c_.head().pair_bytes();
  }

  void check_budget(double read) const {
    const std::optional<Index> allowed = variant_.allowed_bytes(task_);
    if (allowed && read > static_cast<double>(*allowed)) {
      throw std::logic_error(fmt::format("{} bytes read of the middle, budget {}", read, *allowed));
    }
  }

  void fill_read(Index g, double read, Index index, Row& row) const {
    const ReadFigures figures = read_figures(c_.head(), g, c_.truth(g), task_.tokens, fixed_tokens_,
                                             reads_.lists, reads_.asked);
    if (reads_.fixed && reads_.lists.empty()) {  // as under prefill, to the bit
      fill(row, held_figures(c_.truth(g), held_flags(c_, {fixed_tokens_}), c_.sink_mass(g)));
    } else {
      fill(row, figures.held);
    }
    const Index full = task_.count() * c_.head().pair_bytes();
    fill(row, ReadColumns{read, full > 0 ? read / static_cast<double>(full) : 1.0, index,
                          figures.recall});
  }

  const HeadContext& c_;
  const Entry& entry_;
  const Variant& variant_;
  Task task_;
  Index m_;
  Reads reads_;
  FixedBytes fixed_;
  std::vector<Index> fixed_tokens_;
  double compress_ms_ = 0.0;
  double search_s_ = 0.0;
};

}  // namespace

void check_reads(const Reads& reads, const Task& task) {
  if (reads.fixed) {
    check_compressed(*reads.fixed, task);
  }
  const std::vector<Index> fixed = fixed_tokens(reads);
  const ReadLists& lists = reads.lists;
  const Index m = task.evaluated.size();
  const auto count = static_cast<std::size_t>((lists.shared ? 1 : task.head.group()) * m);
  require(reads.index_bytes >= 0 && reads.index_bytes_read() >= 0, "index bytes of at least 0");
  if (reads.coded) {
    require(!reads.fixed && reads.coded->k.rows() == task.count() &&
                reads.coded->v.rows() == task.count(),
            "a coded row for each token, and no fixed set");
    check_compressed(coded_as_made(*reads.coded), task);
  }
  require(lists.empty() || (lists.queries == m && lists.tokens.size() == count),
          "a list for each query");
  require(lists.weights.empty() || lists.weights.size() == count, "weights of all lists, or none");
  require(reads.asked.empty() || static_cast<Index>(reads.asked.size()) == task.head.group() * m,
          "tokens asked for by each query, or none");
  for (std::size_t i = 0; i < lists.tokens.size(); ++i) {
    const std::vector<std::uint32_t>& tokens = lists.tokens[i];
    require(std::ranges::adjacent_find(tokens, std::greater_equal<>()) == tokens.end(),
            "tokens read strictly ascending");
    require(std::ranges::includes(task.tokens, tokens), "tokens read among the task's");
    for (const std::uint32_t token : tokens) {
      require(!std::ranges::binary_search(fixed, static_cast<Index>(token)), "no token read twice");
    }
    if (!lists.weights.empty()) {
      require(lists.weights[i].size() == tokens.size(), "as many weights as tokens read");
      require(std::ranges::all_of(lists.weights[i],
                                  [](float w) { return std::isfinite(w) && w >= 0.0F; }),
              "weights in [0, inf)");
    }
  }
}

JobResult run_retrieval_job(const HeadContext& context, const Entry& entry,
                            const ShareOrError* share) {
  return run_guarded(context, entry,
                     [&](JobResult& out) { RetrievalJob(context, entry, share).run(out); });
}

}  // namespace kvbench
