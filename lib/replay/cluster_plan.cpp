#include "replay/cluster_plan.hpp"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

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
  if (o.device != "cpu") {
    check_input(o.device.rfind("cuda", 0) == 0,
                fmt::format("--device: got '{}', expected cpu or cuda[:i]", o.device));
    throw IoError(fmt::format("--device {}: cluster does not run on cuda, expected cpu", o.device));
  }
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

}  // namespace

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
  return plan;
}

int usable_threads(const ClusterPlan& plan) {
  const ClusterOptions& o = plan.options;
  auto fit = static_cast<std::uint64_t>(o.threads > 0 ? o.threads : omp_get_num_procs());
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
