#include "replay/cluster_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "cluster/attention_facts.hpp"
#include "core/error.hpp"
#include "gpu/device.hpp"
#include "replay/selection.hpp"

namespace kvbench {
namespace {

void check_options(const ClusterOptions& o) {
  check_input(!o.traces.empty(), "cluster: no trace, expected at least one");
  check_input(!o.out.empty(), "cluster: no output, expected -o DIR");
  check_input(!o.what.empty(), "--what: got nothing, expected keys, values or both");
  for (const auto& [option, got, min] : {std::tuple{"--k", o.study.centers, 1},
                                         {"--max-k", o.study.max_k, 1},
                                         {"--max-clusters", o.study.max_clusters, 1},
                                         {"--pca", o.study.components, 0},
                                         {"--max-points", o.study.max_points, 0}}) {
    check_input(got >= min, fmt::format("{}: got {}, expected at least {}", option, got, min));
  }
  for (const auto& [option, distances] :
       {std::pair{"--deltas", &o.study.deltas}, {"--delta-rel", &o.study.deltas_rel}}) {
    for (const double x : *distances) {
      check_input(std::isfinite(x) && x >= 0.0,
                  fmt::format("{}: got {}, expected finite numbers >= 0", option, x));
    }
  }
  check_input(o.kept_by.empty() || o.points != PointsFormat::none,
              "--kept-by: got --points none, expected csv");
  check_threads(o);
}

std::vector<ClusterHead> list_heads(ClusterPlan& plan) {
  ClusterOptions& o = plan.options;
  std::vector<ClusterHead> out;
  for_each_layer(plan.readers, o, "--kv-heads", &LayerMeta::kv_heads,
                 [&](std::size_t t, std::size_t p, std::size_t l, const LayerMeta& layer) {
                   for (Index h = 0; h < layer.kv_heads; ++h) {
                     if (selected(o.heads, h)) {
                       out.push_back({t, p, l, h});
                     }
                   }
                 });
  check_input(!out.empty(), "cluster: --prompts, --layers and --kv-heads together select nothing");
  return out;
}

// Bytes of device memory.
struct ClusterDeviceNeed {
  std::uint64_t sets = 0;         // of a head
  std::uint64_t task = 0;         // of a thread on the widest set, without scratch
  std::uint64_t min_scratch = 0;  // of a thread

  std::uint64_t min_bytes() const { return sets + task + min_scratch; }
};

ClusterDeviceNeed cluster_device_need(const ClusterPlan& plan, const ClusterHead& h, Index n) {
  ClusterDeviceNeed need;
  for (const LayerTensor what : plan.sets(h)) {
    const Index d = plan.width(h, what);
    need.sets += device_rows_bytes(n, d);
    need.task = std::max(need.task, device_rows_task_bytes(n, d));
    need.min_scratch = std::max(need.min_scratch, device_rows_min_scratch(d));
  }
  return need;
}

// Most tokens of a head as wide as `h` that fit `memory`.
Index tokens_that_fit(const ClusterPlan& plan, const ClusterHead& h, std::uint64_t memory) {
  const std::uint64_t fixed = cluster_device_need(plan, h, 0).min_bytes();
  const std::uint64_t each = cluster_device_need(plan, h, 1).min_bytes() - fixed;
  return memory > fixed ? static_cast<Index>((memory - fixed) / each) : 0;
}

}  // namespace

void fit_device(ClusterPlan& plan, std::uint64_t memory) {
  const ClusterOptions& o = plan.options;
  auto threads = static_cast<std::uint64_t>(wanted_threads(o));
  for (const ClusterHead& h : plan.heads) {
    const LayerMeta& l = plan.layer(h);
    const ClusterDeviceNeed need = cluster_device_need(plan, h, l.n);
    if (need.min_bytes() > memory) {
      throw IoError(fmt::format(
          "--device {}: prompt {} layer {} needs {} bytes for its rows and {} for a thread, {} "
          "available, enough for {} of its {} tokens; expected --device cpu",
          o.device, plan.prompt(h).id, l.layer, need.sets, need.task + need.min_scratch, memory,
          tokens_that_fit(plan, h, memory), l.n));
    }
    threads = std::min(
        threads, (memory - need.sets) / std::max<std::uint64_t>(1, need.task + need.min_scratch));
  }
  for (const ClusterHead& h : plan.heads) {
    const ClusterDeviceNeed need = cluster_device_need(plan, h, plan.layer(h).n);
    plan.scratch_bytes = std::min(
        plan.scratch_bytes, static_cast<std::size_t>((memory - need.sets) / threads - need.task));
  }
  plan.device_threads = static_cast<int>(threads);
}

std::vector<LayerTensor> ClusterPlan::sets(const ClusterHead& h) const {
  std::vector<LayerTensor> out;
  for (const LayerTensor what : {LayerTensor::keys, LayerTensor::values}) {
    if (layer(h).has(what) && selected(options.what, what)) {
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
  study.points = options.points != PointsFormat::none;
  if (study.deltas.empty() && study.deltas_rel.empty()) {
    study.deltas_rel = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9};  // at 1 there is one cluster
  }
  open_traces(options.traces, Require::keys, plan.readers, plan.trace_names);
  number_layers(plan.readers, plan.options.layers);
  plan.heads = list_heads(plan);
  const bool any = std::any_of(plan.heads.begin(), plan.heads.end(),
                               [&](const ClusterHead& h) { return !plan.sets(h).empty(); });
  check_input(any, "--what values: the selected layers have no values, expected some");
  plan.options.device = device.text();
  if (device.cuda) {
    fit_device(plan, device_memory(plan.options, device_info(device.ordinal).free_bytes));
    plan.open_rows = [ordinal = device.ordinal](MatrixView rows, std::size_t scratch_bytes) {
      return open_gpu_rows(rows, ordinal, scratch_bytes);
    };
  }
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
    // Keys, values and queries in float32, decoding of one head, norms twice.
    MemoryNeed head{4 * static_cast<std::uint64_t>(l.n * (l.d + l.dv)) +
                        8 * static_cast<std::uint64_t>(l.n * std::max(l.d, l.dv) + 2 * l.n) +
                        4 * static_cast<std::uint64_t>(l.group() * l.nq * l.d),
                    l.q_heads > 0 ? static_cast<std::uint64_t>(attention_facts_bytes(l.n)) : 1, 0};
    for (const LayerTensor what : plan.sets(h)) {
      const StudyMemory need = study_memory(o.study, l.n, plan.width(h, what));
      head.unit += need.result;
      head.per_thread = std::max(head.per_thread, need.per_thread);
    }
    head.add_margin();
    fit = threads_that_fit(o, head, fit, plan.prompt(h), l);
  }
  return static_cast<int>(fit);
}

}  // namespace kvbench
