#include "replay/layer_errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "core/parallel.hpp"
#include "metrics/layer_error.hpp"
#include "replay/side_tables.hpp"
#include "replay/windows.hpp"
#include "report/run_files.hpp"
#include "report/table_spec.hpp"

namespace kvbench {
namespace {

std::span<const std::byte> bytes_of(const Matrix& m) {
  return std::as_bytes(std::span(m.data(), m.rows() * m.cols()));
}

// Sum of the squared norms of the residual stream at the last m queries, if the trace has them.
std::optional<double> residual_square(const PlanSpec& plan, const TraceReader& reader,
                                      const Unit& unit, Index m) {
  if (!plan.layer_meta(unit).has_residual_norm) {
    return std::nullopt;
  }
  const std::vector<float> norms = reader.read_residual_norm(unit.prompt, unit.layer);
  double sum = 0.0;
  for (auto r = norms.end() - m; r != norms.end(); ++r) {
    sum += static_cast<double>(*r) * static_cast<double>(*r);
  }
  return sum;
}

// residual_rel of each KV head's part, separated by `;`.
std::string head_errors(const std::vector<double>& moved, double residual) {
  std::string out;
  for (const double square : moved) {
    out += (out.empty() ? "" : ";") + field_text(*layer_error(square, 0.0, residual).residual_rel);
  }
  return out;
}

}  // namespace

LayerErrors::LayerErrors(const PlanSpec& plan, const std::string& run, bool resume,
                         std::vector<JobState>& states,
                         const std::function<bool(Index job)>& has_line)
    : plan_(plan),
      jobs_(plan.shard_jobs()),
      states_(states),
      journal_(layers_journal_path(plan.options.out), run, resume, Journal::Damage::skip) {
  for (const Range units : plan.layers()) {
    if (!plan.makes_layer_error(plan.units[units.begin]) ||
        !jobs_.contains(job_of(units.begin, 0))) {
      continue;
    }
    OpenLayer& layer = open_.emplace_back(OpenLayer{units, {}});
    for (Index e = 0; e < std::ssize(plan.entries); ++e) {
      if (has_line(job_of(units.begin, e)) || any(units, e, JobState::unmeasured)) {
        continue;
      }
      layer.entries.push_back(e);
      for (Index u = units.begin; u < units.end; ++u) {
        JobState& of_job = state(job_of(u, e));
        if (!journal_.has(job_of(u, e)) || !journal_.has(exact_number(u))) {
          of_job = JobState::open;
        } else if (of_job == JobState::measured) {
          exact_.insert(u);
        }
      }
    }
  }
}

void LayerErrors::add(Index job, const LayerPart& part) {
  const Index unit = job / static_cast<Index>(plan_.entries.size());
  {
    const std::lock_guard lock(mutex_);  // only the unit's first job stores the exact outputs
    if (!exact_.contains(unit)) {
      journal_.append(exact_number(unit), bytes_of(part.exact));
      exact_.insert(unit);
    }
  }
  journal_.append(job, bytes_of(part.differences));
}

bool LayerErrors::any(Range units, Index entry, JobState state) const {
  for (Index u = units.begin; u < units.end; ++u) {
    if (this->state(job_of(u, entry)) == state) {
      return true;
    }
  }
  return false;
}

// By head: the differences of an entry; for entry -1 the exact outputs.
std::vector<Matrix> LayerErrors::parts(Range units, Index entry) const {
  const Unit& unit = plan_.units[units.begin];
  const LayerMeta& l = plan_.layer_meta(unit);
  const Index m = windows_of(plan_.options, l).queries;
  std::vector<Matrix> out;
  for (Index u = units.begin; u < units.end; ++u) {
    const Index number = entry < 0 ? exact_number(u) : job_of(u, entry);
    const std::vector<std::byte> bytes = journal_.read(number);
    Matrix& to = out.emplace_back(m, l.group() * l.dv);
    if (bytes.size() != bytes_of(to).size()) {
      throw IoError(fmt::format("{}: record {} has {} bytes, expected {}", journal_.path().string(),
                                number, bytes.size(), bytes_of(to).size()));
    }
    std::memcpy(to.data(), bytes.data(), bytes.size());
  }
  return out;
}

// Returns false if it was stopped.
bool LayerErrors::make_lines(const OpenLayer& layer, const std::vector<TraceReader>& readers,
                             int threads, const std::atomic<bool>& stop,
                             const PutLine& put_line) const {
  const Range units = layer.units;
  std::vector<Index> entries = layer.entries;
  std::erase_if(entries, [&](Index e) { return any(units, e, JobState::unmeasured); });
  if (entries.empty()) {
    return true;
  }
  const Unit& first = plan_.units[units.begin];
  const LayerMeta& l = plan_.layer_meta(first);
  const TraceReader& reader = readers[first.trace];
  std::vector<Matrix> projection;
  for (Index u = units.begin; u < units.end; ++u) {
    projection.push_back(reader.read_o_proj(first.prompt, first.layer, plan_.units[u].kv_head));
  }
  const Windows w = windows_of(plan_.options, l);
  const Index shared = plan_.stream()               ? l.n
                       : plan_.options.total_budget ? w.seen()
                                                    : w.middle.size();
  const std::optional<double> residual = residual_square(plan_, reader, first, w.queries);

  std::optional<double> exact;
  constexpr std::size_t kAtOnce = 1024;  // most lines in memory
  for (std::size_t begin = 0; begin < entries.size(); begin += kAtOnce) {
    const std::size_t end = std::min(entries.size(), begin + kAtOnce);
    std::vector<Index> outputs(entries.begin() + static_cast<std::ptrdiff_t>(begin),
                               entries.begin() + static_cast<std::ptrdiff_t>(end));
    if (!exact) {
      outputs.push_back(-1);
    }
    std::vector<std::optional<ProjectedSquares>> squares(outputs.size());
    parallel_for(std::ssize(outputs), threads, stop, [&](Index i) {
      squares[i] = projected_squares(parts(units, outputs[i]), projection);
    });
    if (!std::ranges::all_of(squares, [](const auto& s) { return s.has_value(); })) {
      return false;
    }
    exact = exact ? exact : squares.back()->whole;
    for (std::size_t i = 0; i < end - begin; ++i) {
      const LayerError error = layer_error(squares[i]->whole, *exact, residual);
      const Row row = blank_row(plan_, first, plan_.entries[outputs[i]], first.q_heads.front());
      put_line(job_of(units.begin, outputs[i]),
               layers_table().line(
                   to_fields(row), error.out_rel, error.residual_rel,
                   residual ? head_errors(squares[i]->of_heads, *residual) : std::string(),
                   shared * l.kv_heads * plan_.pair_bytes(first)));
    }
  }
  return true;
}

void LayerErrors::finish(const std::vector<TraceReader>& readers, int threads,
                         const std::atomic<bool>& stop, const PutLine& put_line) {
  for (auto layer = open_.begin(); layer != open_.end() && !stop;) {
    const Range units = layer->units;
    const auto states =
        std::span(states_).subspan(job_of(units.begin, 0) - jobs_.begin, job_of(units.size(), 0));
    if (std::ranges::find(states, JobState::open) != states.end() ||
        !make_lines(*layer, readers, threads, stop, put_line)) {
      ++layer;
      continue;
    }
    layer = open_.erase(layer);
    exact_.erase(exact_.lower_bound(units.begin), exact_.lower_bound(units.end));
  }
  if (exact_.empty()) {
    journal_.clear();
  }
}

}  // namespace kvbench
