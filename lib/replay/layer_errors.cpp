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

nlohmann::json layers_without_error(const PlanSpec& plan) {
  nlohmann::json out = nlohmann::json::array();
  for (const Range units : plan.layers()) {
    const Unit& unit = plan.units[units.begin];
    if (!plan.error_layers.empty() && !plan.makes_layer_error(unit)) {
      out.push_back(
          {plan.trace_names[unit.trace], plan.prompt_meta(unit).id, plan.layer_meta(unit).layer});
    }
  }
  return out;
}

LayerErrors::LayerErrors(const PlanSpec& plan, bool resume, PutLine put_line)
    : plan_(plan),
      put_line_(std::move(put_line)),
      entries_(static_cast<Index>(plan.entries.size())),
      jobs_(plan.shard_jobs()),
      journal_(layers_journal_path(plan.options.out), plan.hash(), resume),
      states_(jobs_.size(), State::open),
      written_(jobs_.size()) {
  for (const Range units : plan.layers()) {
    const Unit& unit = plan.units[units.begin];
    if (plan.makes_layer_error(unit) && jobs_.contains(job_of(units.begin, 0))) {
      open_.push_back(units);
    }
  }
}

void LayerErrors::note(Index job, bool measured, bool line) {
  state(job) = measured ? State::measured : State::unmeasured;
  written(job) = line;
}

std::vector<Index> LayerErrors::open() {
  std::vector<Index> again;
  for (const Range units : open_) {
    for (Index e = 0; e < entries_; ++e) {
      const Index line = job_of(units.begin, e);
      written(line) = written(line) && measured(units, e);
      if (written(line) || any(units, e, State::unmeasured)) {
        continue;
      }
      for (Index u = units.begin; u < units.end; ++u) {
        const Index job = job_of(u, e);
        if (state(job) != State::measured) {
          continue;
        }
        if (journal_.has(job) && journal_.has(exact_number(u))) {
          exact_.insert(u);
        } else {
          state(job) = State::open;
          again.push_back(job);
        }
      }
    }
  }
  if (exact_.empty()) {
    journal_.clear();  // its records may be of other traces
  }
  return again;
}

void LayerErrors::add(Index job, const JobResult& result) {
  if (!plan_.makes_layer_error(plan_.unit_of(job))) {
    return;
  }
  if (!has_lines(result.rows.front().status)) {
    state(job) = State::unmeasured;
    return;
  }
  {
    const Index unit = job / entries_;
    const std::lock_guard lock(mutex_);  // only the unit's first job stores the exact outputs
    if (!exact_.contains(unit)) {
      journal_.append(exact_number(unit), bytes_of(result.layer.exact));
      exact_.insert(unit);
    }
  }
  journal_.append(job, bytes_of(result.layer.differences));
  state(job) = State::measured;
}

bool LayerErrors::any(Range units, Index entry, State state) const {
  for (Index u = units.begin; u < units.end; ++u) {
    if (states_[job_of(u, entry) - jobs_.begin] == state) {
      return true;
    }
  }
  return false;
}

bool LayerErrors::done(Range units) const {
  for (Index e = 0; e < entries_; ++e) {
    if (any(units, e, State::open)) {
      return false;
    }
  }
  return true;
}

bool LayerErrors::measured(Range units, Index entry) const {
  return !any(units, entry, State::open) && !any(units, entry, State::unmeasured);
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

bool LayerErrors::make_lines(Range units, const std::vector<TraceReader>& readers, int threads,
                             const std::atomic<bool>& stop) {
  std::vector<Index> entries;
  for (Index e = 0; e < entries_; ++e) {
    if (measured(units, e) && !written(job_of(units.begin, e))) {
      entries.push_back(e);
    }
  }
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
      const Index job = job_of(units.begin, outputs[i]);
      put_line_(job, layers_table().line(
                         to_fields(row), error.out_rel, error.residual_rel,
                         residual ? head_errors(squares[i]->of_heads, *residual) : std::string(),
                         shared * l.kv_heads * plan_.pair_bytes(first)));
      written(job) = true;
    }
  }
  return true;
}

void LayerErrors::finish(const std::vector<TraceReader>& readers, int threads,
                         const std::atomic<bool>& stop) {
  for (auto layer = open_.begin(); layer != open_.end() && !stop;) {
    const bool finished = done(*layer) && make_lines(*layer, readers, threads, stop);
    layer = finished ? open_.erase(layer) : std::next(layer);
  }
  // Parts of open layers are still needed.
  const bool needed = std::any_of(open_.begin(), open_.end(), [&](Range units) {
    return std::any_of(exact_.begin(), exact_.end(),
                       [&](Index unit) { return units.contains(unit); });
  });
  if (!needed && !exact_.empty()) {
    journal_.clear();
    exact_.clear();
  }
}

}  // namespace kvbench
