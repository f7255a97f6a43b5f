#include "replay/cluster_plan.hpp"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "attention/device.hpp"
#include "core/error.hpp"
#include "replay/selection.hpp"

namespace kvbench {
namespace {

constexpr int kMostThreads = 1024;

void check_options(const ClusterOptions& o) {
  check_input(!o.traces.empty(), "cluster: no trace given");
  check_input(!o.out.empty(), "cluster: no output, expected -o DIR");
  check_input(!o.what.empty(), "--what: got nothing, expected keys, values or both");
  for (const std::string& w : o.what) {
    check_input(w == "keys" || w == "values",
                fmt::format("--what: got '{}', expected keys, values or both", w));
  }
  const auto at_least = [](const char* option, Index got, Index least) {
    check_input(got >= least, fmt::format("{}: got {}, expected at least {}", option, got, least));
  };
  at_least("--k", o.study.centers, 1);
  at_least("--max-k", o.study.max_k, 1);
  at_least("--max-clusters", o.study.max_clusters, 1);
  at_least("--pca", o.study.components, 0);
  at_least("--max-points", o.study.max_points, 0);
  const auto distances = [](const char* option, const std::vector<double>& all) {
    for (const double x : all) {
      check_input(std::isfinite(x) && x >= 0.0,
                  fmt::format("{}: got {}, expected finite numbers >= 0", option, x));
    }
  };
  distances("--deltas", o.study.deltas);
  distances("--delta-rel", o.study.deltas_rel);
  check_input(o.points == "csv" || o.points == "hdf5" || o.points == "none",
              fmt::format("--points: got '{}', expected csv, hdf5 or none", o.points));
  check_input(o.kept_by.empty() || o.points != "none",
              "--kept-by: --points none shows no tokens, expected --points csv or hdf5");
  check_input(o.threads >= 0 && o.threads <= kMostThreads,
              fmt::format("--threads: got {}, expected 0 to {}", o.threads, kMostThreads));
}

std::vector<ClusterHead> list_heads(const ClusterPlan& plan) {
  const ClusterOptions& o = plan.options;
  std::vector<ClusterHead> out;
  std::set<std::string> prompts;
  std::set<Index> layers;
  std::set<Index> kv_heads;
  for (std::size_t t = 0; t < plan.readers.size(); ++t) {
    const auto& all = plan.readers[t].meta().prompts;
    for (std::size_t p = 0; p < all.size(); ++p) {
      prompts.insert(all[p].id);
      for (std::size_t l = 0; l < all[p].layers.size(); ++l) {
        const LayerMeta& layer = all[p].layers[l];
        layers.insert(layer.layer);
        for (Index h = 0; h < layer.kv_heads; ++h) {
          kv_heads.insert(h);
          if (chosen(o.prompts, all[p].id) && chosen(o.layers, layer.layer) &&
              chosen(o.kv_heads, h)) {
            out.push_back({t, p, l, h});
          }
        }
      }
    }
  }
  check_found("--prompts", o.prompts, prompts);
  check_found("--layers", o.layers, layers);
  check_found("--kv-heads", o.kv_heads, kv_heads);
  check_input(!out.empty(), "cluster: --prompts, --layers and --kv-heads together select nothing");
  return out;
}

int wanted_threads(const ClusterOptions& o) {
  // A thread that waits for a device leaves its core to others.
  constexpr int kDeviceThreads = 32;
  if (o.threads > 0) {
    return o.threads;
  }
  return o.device == "cpu" ? omp_get_num_procs() : std::max(omp_get_num_procs(), kDeviceThreads);
}

// Device memory of a head's sets, of a thread on the widest of them, and of its scratch.
struct DeviceNeed {
  std::uint64_t sets = 0;
  std::uint64_t task = 0;
  std::uint64_t least_scratch = 0;

  std::uint64_t least() const { return sets + task + least_scratch; }
};

DeviceNeed device_need(const ClusterPlan& plan, const ClusterHead& h, Index n) {
  DeviceNeed need;
  for (const Rows what : plan.sets(h)) {
    const Index d = plan.width(h, what);
    need.sets += device_rows_bytes(n, d);
    need.task = std::max(need.task, device_rows_task_bytes(n, d));
    need.least_scratch = std::max(need.least_scratch, device_rows_least_scratch(d));
  }
  return need;
}

// Most tokens of a head as wide as `h` for which `room` suffices.
Index tokens_that_fit(const ClusterPlan& plan, const ClusterHead& h, std::uint64_t room) {
  const std::uint64_t fixed = device_need(plan, h, 0).least();
  const std::uint64_t each = device_need(plan, h, 1).least() - fixed;
  return room > fixed ? static_cast<Index>((room - fixed) / each) : 0;
}

// Settles where the plan runs, how many threads the device's memory allows, and how much of it a
// task's array of scratch may take.
void plan_device(ClusterPlan& plan, const DeviceChoice& device) {
  plan.options.device = device.text();
  if (!device.cuda) {
    return;
  }
  const DeviceInfo info = device_info(device.ordinal);
  fit_device(plan, info.free_bytes - info.free_bytes / 16);  // some is lost to fragments
  plan.open_rows = [ordinal = device.ordinal](MatrixView rows, std::size_t scratch_bytes) {
    return open_device_rows(rows, ordinal, scratch_bytes);
  };
}

}  // namespace

void fit_device(ClusterPlan& plan, std::uint64_t room) {
  const ClusterOptions& o = plan.options;
  if (o.memory_limit > 0) {
    room = std::min(room, o.memory_limit);
  }
  auto threads = static_cast<std::uint64_t>(wanted_threads(o));
  for (const ClusterHead& h : plan.heads) {
    const LayerMeta& l = plan.layer(h);
    const DeviceNeed need = device_need(plan, h, l.n);
    if (need.least() > room) {
      throw IoError(fmt::format(
          "--device {}: prompt {} layer {} needs {} bytes for its rows and {} for a thread, {} can "
          "be had, which {} of its {} tokens fit; expected --device cpu",
          o.device, plan.prompt(h).id, l.layer, need.sets, need.task + need.least_scratch, room,
          tokens_that_fit(plan, h, room), l.n));
    }
    threads = std::min(
        threads, (room - need.sets) / std::max<std::uint64_t>(1, need.task + need.least_scratch));
  }
  for (const ClusterHead& h : plan.heads) {
    const DeviceNeed need = device_need(plan, h, plan.layer(h).n);
    plan.scratch_bytes = std::min(
        plan.scratch_bytes, static_cast<std::size_t>((room - need.sets) / threads - need.task));
  }
  plan.device_threads = static_cast<int>(threads);
}

std::vector<double> default_deltas_rel() {
  return {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9};
}

std::vector<Rows> ClusterPlan::sets(const ClusterHead& h) const {
  std::vector<Rows> out;
  for (const Rows what : {Rows::keys, Rows::values}) {
    if (layer(h).has(what) && chosen(options.what, std::string(name(what)))) {
      out.push_back(what);
    }
  }
  return out;
}

Fields ClusterPlan::place(const ClusterHead& h) const {
  return {trace_names[h.trace], prompt(h).id, std::to_string(layer(h).layer),
          std::to_string(h.kv_head)};
}

ClusterPlan make_cluster_plan(const ClusterOptions& options) {
  check_options(options);
  const DeviceChoice device = choose_device(options.device);
  ClusterPlan plan;
  plan.options = options;
  StudyOptions& study = plan.options.study;
  study.points = options.points != "none";
  if (study.deltas.empty() && study.deltas_rel.empty()) {
    study.deltas_rel = default_deltas_rel();
  }
  for (const std::string& path : options.traces) {
    plan.readers.emplace_back(path, TraceReader::Path::automatic, Require::keys);
    const std::string name = std::filesystem::path(path).filename().string();
    check_input(
        !std::count(plan.trace_names.begin(), plan.trace_names.end(), name),
        fmt::format("{}: two traces are called {}; rows could not tell them apart", path, name));
    plan.trace_names.push_back(name);
  }
  plan.heads = list_heads(plan);
  const bool some = std::any_of(plan.heads.begin(), plan.heads.end(),
                                [&](const ClusterHead& h) { return !plan.sets(h).empty(); });
  check_input(some, "--what values: the selected layers hold no values, expected some");
  plan_device(plan, device);
  return plan;
}

int usable_threads(const ClusterPlan& plan) {
  const ClusterOptions& o = plan.options;
  auto fit = static_cast<std::uint64_t>(wanted_threads(o));
  if (plan.device_threads > 0) {
    fit = std::min(fit, static_cast<std::uint64_t>(plan.device_threads));
  }
  for (const ClusterHead& h : plan.heads) {
    const LayerMeta& l = plan.layer(h);
    // Keys and values in float32, the stored bytes of one head as they are decoded, norms twice.
    std::uint64_t unit = 4 * static_cast<std::uint64_t>(l.n * (l.d + l.dv)) +
                         8 * static_cast<std::uint64_t>(l.n * std::max(l.d, l.dv) + 2 * l.n);
    std::uint64_t per_thread = 1;
    for (const Rows what : plan.sets(h)) {
      const StudyMemory need = study_memory(o.study, l.n, plan.width(h, what));
      unit += need.result;
      per_thread = std::max(per_thread, need.per_thread);
    }
    if (o.memory_limit == 0) {
      continue;
    }
    check_input(
        unit + per_thread <= o.memory_limit,
        fmt::format("--memory-limit: got {} bytes, expected at least {} for prompt {} layer {} "
                    "(n = {})",
                    o.memory_limit, unit + per_thread, plan.prompt(h).id, l.layer, l.n));
    fit = std::min(fit, (o.memory_limit - unit) / per_thread);
  }
  return static_cast<int>(fit);
}

}  // namespace kvbench
