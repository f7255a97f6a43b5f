// Runs that export caches and runs that evaluate them: what their tests share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "replay/head_cache.hpp"
#include "replay_run.hpp"
#include "report/table_spec.hpp"
#include "trace/caches.hpp"

namespace kvbench::testing_caches {

// A cache is what a method held, but that weights go through log w as a float: |log w| is at most
// some 20, so a weight comes back within 21 * 2^-24 = 1.3e-6 of itself, the quotient of sums of
// them within twice that, and figures that are relative to |a| or |p| |V| likewise. Where all
// weights are 1 the sums are the same numbers.
inline constexpr double kRelative = 1e-6;
inline constexpr double kAbsolute = 2.6e-6;

/// A measured number that is no count of tokens or bytes, or a figure of OUT.layers.csv.
inline bool is_figure(const std::string& column) {
  const auto at = std::ranges::find(columns(), column, &Column::name);
  return at == columns().end()
             ? column == "out_rel_error" || column.starts_with("residual_rel_error")
             : at->measured && !at->timing && at->unit != "tokens" && at->unit != "bytes";
}

/// Text, counts and bytes equal; figures within the bounds; timing columns apart.
inline void expect_same_tables(const std::filesystem::path& got_path,
                               const std::filesystem::path& expected_path,
                               double relative = kRelative, double absolute = kAbsolute) {
  SCOPED_TRACE(got_path.string() + " and " + expected_path.string());
  const Table got = testing_rows::read_without_run(got_path);
  const Table expected = testing_rows::read_without_run(expected_path);
  ASSERT_EQ(got.header, expected.header);
  ASSERT_EQ(got.rows.size(), expected.rows.size());
  ASSERT_FALSE(expected.rows.empty());
  for (std::size_t i = 0; i < got.rows.size(); ++i) {
    for (std::size_t c = 0; c < got.header.size(); ++c) {
      const std::string& name = got.header[c];
      const std::string& a = got.rows[i][c];
      const std::string& b = expected.rows[i][c];
      if (name == "compress_ms" || name == "attend_us_per_query" || a == b) {
        continue;
      }
      const std::string where = expected.rows[i][got.column("algorithm")] + " " +
                                expected.rows[i][got.column("params")] + " row " +
                                std::to_string(i) + " " + name + ": " + a + ", expected " + b;
      ASSERT_TRUE(is_figure(name)) << where;
      ASSERT_EQ(std::ranges::count(a, ';'), std::ranges::count(b, ';')) << where;
      std::istringstream got_parts(a);
      std::istringstream expected_parts(b);
      for (std::string p, q;
           std::getline(got_parts, p, ';') && std::getline(expected_parts, q, ';');) {
        double x = 0.0;
        double y = 0.0;
        ASSERT_TRUE(parse_number(p, x) && parse_number(q, y)) << where;
        ASSERT_TRUE(std::abs(x - y) <= relative * std::abs(y) + absolute) << where;
      }
    }
  }
}

/// What a caches file holds of the plan's heads, by group and place; times apart.
inline std::map<std::string, std::vector<std::byte>> contents(const std::string& path,
                                                              const Plan& plan) {
  std::map<std::string, std::vector<std::byte>> out;
  const CacheReader reader(path);
  for (std::size_t g = 0; g < reader.groups().size(); ++g) {
    const CacheGroup& group = reader.groups()[g];
    const std::string what = group.name + "|" + group.algorithm + "|" + group.params + "|" +
                             (group.budget ? number_text(*group.budget) : "") + "|" +
                             std::to_string(group.seed) + "|" + group.scores + "|" + group.scope;
    for (const Unit& unit : plan.units) {
      const LayerMeta& layer = plan.layer_meta(unit);
      const CachePlace place{plan.prompt_meta(unit).id, layer.layer, unit.kv_head};
      if (auto cache = reader.read(g, place, {layer.n, layer.d, layer.dv})) {
        cache->compress_ms.reset();
        out.emplace(what + " " + reader.where(g, place).substr(path.size()), to_bytes(*cache));
      }
    }
  }
  return out;
}

class CachesTest : public testing_replay::ReplayTest {
 protected:
  ReplayOptions options(const std::string& out = "out.csv",
                        const std::string& caches = "c.h5") const {
    ReplayOptions o = basic(out);
    o.algorithms = {"exact", "uniform", "balancekv:T=2;block=8", "kmeans", "kvreviver"};
    o.budgets = {0.5, 0.1};
    o.seeds = "2";
    o.export_caches = caches.empty() ? "" : (folder_ / caches).string();
    return o;
  }

  ReplayOptions evaluation(const std::string& out, const std::vector<std::string>& caches) const {
    ReplayOptions o;
    o.traces = {trace_};
    o.out = (folder_ / out).string();
    o.threads = 1;
    for (const std::string& name : caches) {
      o.caches.push_back((folder_ / name).string());
    }
    return o;
  }

  std::string at(const std::string& name) const { return (folder_ / name).string(); }
};

}  // namespace kvbench::testing_caches
