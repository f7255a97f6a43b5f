// OUT.layers.csv: its numbers against triple loops over the trace's values and the cache's tokens,
// and which layers get lines.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "replay_run.hpp"
#include "report/table_spec.hpp"
#include "trace_files.hpp"

namespace kvbench::test_layer_errors {
namespace {

namespace fs = std::filesystem;
using namespace testing_replay;

using Wide = std::vector<std::vector<double>>;  // [rows][columns]

// Outputs are rounded to float32 once, 6e-8 each; sums of them are no worse.
constexpr double kRounded = 1e-6;
constexpr Index kHidden = 7;
constexpr Index kQueries = 9;

bool near(double got, double expected, double relative) {
  return std::abs(got - expected) <= relative * std::abs(expected);
}

Wide wide(const Matrix& m) {
  Wide out(static_cast<std::size_t>(m.rows()));
  for (Index r = 0; r < m.rows(); ++r) {
    out[r].assign(m.row(r), m.row(r) + m.cols());
  }
  return out;
}

// Numbers separated by `;`.
std::vector<double> parse_numbers(const std::string& text) {
  std::vector<double> out;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ';');) {
    out.push_back(std::stod(part));
  }
  return out;
}

// |sum_h W_h x_h|_F; x: by query head [m][dv]; W: [hidden][heads * dv].
double through_projection(const std::vector<Wide>& x, const Wide& w) {
  double sum = 0.0;
  for (std::size_t j = 0; j < x[0].size(); ++j) {
    for (const std::vector<double>& row : w) {
      double to = 0.0;
      for (std::size_t h = 0; h < x.size(); ++h) {
        for (std::size_t t = 0; t < x[h][j].size(); ++t) {
          to += row[h * x[h][j].size() + t] * x[h][j][t];
        }
      }
      sum += to * to;
    }
  }
  return std::sqrt(sum);
}

std::vector<Wide> difference(const std::vector<Wide>& a, const std::vector<Wide>& b) {
  std::vector<Wide> out = a;
  for (std::size_t h = 0; h < a.size(); ++h) {
    for (std::size_t j = 0; j < a[h].size(); ++j) {
      for (std::size_t t = 0; t < a[h][j].size(); ++t) {
        out[h][j][t] -= b[h][j][t];
      }
    }
  }
  return out;
}

class LayerErrorsTest : public ReplayTest {
 protected:
  // Two prompts, two layers, 2 KV heads of 3 query heads each; values are narrower than keys.
  std::string trace(const std::string& name = "w.h5", bool norms = true) const {
    return make_trace(folder_ / name, {.tokens = {60, 41},
                                       .layers = {0, 2},
                                       .q_heads = 6,
                                       .rope = rope_tables(60 + 512, 8),
                                       .hidden = kHidden,
                                       .residual_norm = norms});
  }

  ReplayOptions options(Protocol protocol = Protocol::prefill) const {
    ReplayOptions o = basic("out.csv");
    o.traces = {trace()};
    o.algorithms = {"all", "h2o+balancekv"};
    if (protocol != Protocol::prefill) {
      o.algorithms.pop_back();
    }
    o.budgets = {0.5, 0.02};  // the second is too small for some
    o.protocol = protocol;
    o.sink = 3;
    o.queries = kQueries;
    return o;
  }

  static fs::path layers_of(const ReplayOptions& o) { return layers_table().path(o.out); }

  // Attention of the last queries of every query head to the tokens that `may` lets them see.
  template <class May>
  static std::vector<Wide> attention(const std::string& path, std::size_t prompt, std::size_t layer,
                                     const May& may) {
    const TraceReader reader(path);
    const LayerMeta& l = reader.meta().prompts[prompt].layers[layer];
    std::vector<Wide> out;
    for (Index h = 0; h < l.q_heads; ++h) {
      const Wide q = wide(reader.read_rows(prompt, layer, LayerTensor::queries, h));
      const Wide k = wide(reader.read_rows(prompt, layer, LayerTensor::keys, h / 3));
      const Wide v = wide(reader.read_rows(prompt, layer, LayerTensor::values, h / 3));
      Wide& a = out.emplace_back();
      for (Index j = l.n - kQueries; j < l.n; ++j) {
        std::vector<double> sum(l.dv, 0.0);
        double total = 0.0;
        for (Index i = 0; i <= j; ++i) {
          const auto at = static_cast<std::size_t>(i);
          if (!may(h / 3, j, i)) {
            continue;
          }
          double logit = 0.0;
          for (std::size_t t = 0; t < k[at].size(); ++t) {
            logit += q[j][t] * k[at][t];
          }
          const double p = std::exp(logit / std::sqrt(static_cast<double>(l.d)));
          total += p;
          for (std::size_t t = 0; t < sum.size(); ++t) {
            sum[t] += p * v[at][t];
          }
        }
        for (double& x : sum) {
          x /= total;
        }
        a.push_back(sum);
      }
    }
    return out;
  }

  static std::vector<Wide> exact(const std::string& path, std::size_t prompt, std::size_t layer) {
    return attention(path, prompt, layer, [](Index, Index, Index) { return true; });
  }

  // Of make_trace's norms 1, 1.25, 1.5, ...
  static double residual(Index n) {
    double sum = 0.0;
    for (Index j = n - kQueries; j < n; ++j) {
      const double r = 1.0 + static_cast<double>(j) / 4.0;
      sum += r * r;
    }
    return std::sqrt(sum);
  }

  static std::map<std::string, Fields> lines_by_key(const ReplayOptions& o) {
    std::map<std::string, Fields> out;
    const Table table = read_table(layers_of(o));
    EXPECT_EQ(table.header, layers_table().header());
    for (const Fields& line : table.rows) {
      EXPECT_TRUE(out.emplace(layers_table().key(line), line).second);
    }
    return out;
  }
};

// A line for each layer and setting that both KV heads measured. Numbers: KeptTokensGiveTheSame.
TEST_F(LayerErrorsTest, EverySettingThatIsMeasuredHasALine) {
  for (const Protocol protocol : kProtocols) {
    ReplayOptions o = options(protocol);
    o.overwrite = true;
    EXPECT_EQ(run(o).failed, 0);
    EXPECT_FALSE(fs::exists(folder_ / "out.layers.csv.part"));
    std::map<std::string, bool> measured;
    for (const Fields& row : read_table(o.out).rows) {
      bool& all = measured.try_emplace(layers_table().key_of_row(row), true).first->second;
      all = all && has_lines(row[column_index("status")]);
    }
    const std::map<std::string, Fields> lines = lines_by_key(o);
    EXPECT_GT(lines.size(), 20U);
    for (const auto& [key, all] : measured) {
      EXPECT_EQ(lines.contains(key), all) << key;
    }
    for (const auto& [key, line] : lines) {
      const double error = std::stod(line[layers_table().joined()]);
      const bool exact = key.find("5:exact,") != std::string::npos;
      EXPECT_TRUE(exact ? error <= kRounded : error >= 0.0) << key << " " << error;
    }
  }
}

// From the files alone: methods that keep tokens with weight 1, by the tokens of OUT.kept.csv.
TEST_F(LayerErrorsTest, KeptTokensGiveTheSameNumbers) {
  for (const Protocol protocol : {Protocol::prefill, Protocol::stream}) {
    const bool stream = protocol == Protocol::stream;
    ReplayOptions o = options(protocol);
    o.overwrite = true;
    o.kept = true;
    o.budgets = {0.5};
    o.algorithms = {stream ? "streamingllm,local,h2o" : "streamingllm,knorm,h2o,snapkv"};
    o.eval_every = stream ? 1 : 0;  // what is held at every step
    run(o);
    const Table kept = read_table(kept_table().path(o.out));
    const TraceReader reader(o.traces[0]);
    std::map<std::string, std::map<Index, std::vector<Index>>> held;  // by key, position
    const auto key_of = [](const Fields& line, const Table& table, const std::string& kv_head) {
      return line[table.column("prompt")] + " " + line[table.column("layer")] + " " + kv_head +
             " " + line[table.column("algorithm")];
    };
    for (const Fields& line : kept.rows) {
      held[key_of(line, kept, line[kept.column("kv_head")])][std::stol(line[kept.column("step")])] =
          parse_ranges(line[kept.column("tokens")], 60);
    }
    const Table lines = read_table(layers_of(o));
    EXPECT_EQ(lines.rows.size(), 2U * 2U * (stream ? 3U : 4U));
    for (const Fields& line : lines.rows) {
      const std::size_t prompt = line[lines.column("prompt")] == "p0" ? 0 : 1;
      const std::size_t layer = line[lines.column("layer")] == "0" ? 0 : 1;
      const Index n = prompt == 0 ? 60 : 41;
      const std::vector<Wide> a = exact(o.traces[0], prompt, layer);
      const std::vector<Wide> z =
          attention(o.traces[0], prompt, layer, [&](Index kv_head, Index j, Index i) {
            const std::vector<Index>& set =
                held.at(key_of(line, lines, std::to_string(kv_head))).at(stream ? j : n - 1);
            return std::binary_search(set.begin(), set.end(), i);
          });
      const Wide w = wide(made_projection(kHidden, 6 * 6, layer == 0 ? 0 : 2));
      const double error = through_projection(difference(z, a), w);
      const Index shared = stream ? n : n - o.sink - o.recent;
      EXPECT_EQ(line[lines.column("budget_bytes")], std::to_string(2 * shared * (8 + 6) * 2));
      const std::string& heads = line[lines.column("residual_rel_error_heads")];
      const std::vector<double> of_heads = parse_numbers(heads);
      ASSERT_EQ(of_heads.size(), 2U) << heads;
      for (std::size_t g = 0; g < 2; ++g) {  // as if the other KV head were exact
        std::vector<Wide> part = difference(z, a);
        for (std::size_t h = 0; h < part.size(); ++h) {
          if (h / 3 != g) {
            std::ranges::fill(part[h], std::vector<double>(part[h].front().size(), 0.0));
          }
        }
        EXPECT_TRUE(near(of_heads[g], through_projection(part, w) / residual(n), kRounded))
            << heads;
      }
      EXPECT_TRUE(near(std::stod(line[lines.column("out_rel_error")]),
                       error / through_projection(a, w), kRounded));
      EXPECT_TRUE(
          near(std::stod(line[lines.column("residual_rel_error")]), error / residual(n), kRounded));
    }
  }
}

TEST_F(LayerErrorsTest, WithoutNormsThereIsNoErrorOfTheStream) {
  ReplayOptions o = options();
  o.traces = {trace("bare.h5", false)};
  o.algorithms = {"uniform"};
  run(o);
  const Table table = read_table(layers_of(o));
  ASSERT_EQ(table.rows.size(), 2U * 2U * 2U);
  for (const Fields& line : table.rows) {
    EXPECT_GT(std::stod(line[table.column("out_rel_error")]), 0.0);
    EXPECT_EQ(line[table.column("residual_rel_error")], "");
    EXPECT_EQ(line[table.column("residual_rel_error_heads")], "");
  }
}

TEST_F(LayerErrorsTest, OnlyWholeLayersWithAProjectionGetLines) {
  ReplayOptions o = options();
  o.algorithms = {"uniform"};
  o.heads = {0, 1, 2, 3, 4};
  EXPECT_TRUE(make_plan(o).error_layers.empty());
  EXPECT_EQ(
      make_plan(o).notes,
      (std::vector<std::string>{
          "note: OUT.layers.csv is not written: --heads excludes query heads of every layer"}));
  const std::string partial = make_plan(o).hash();
  run(o);
  EXPECT_FALSE(fs::exists(layers_of(o)));
  EXPECT_FALSE(fs::exists(layers_of(o).string() + ".part"));

  o.heads = {0, 1, 2};
  o.overwrite = true;
  o.export_caches = (folder_ / "c.h5").string();
  run(o);
  ReplayOptions again = basic("again.csv");
  again.traces = o.traces;
  again.caches = {o.export_caches};
  EXPECT_EQ(make_plan(again).notes,
            (std::vector<std::string>{"note: OUT.layers.csv is not written: the caches lack query "
                                      "heads of every layer"}));
  o.export_caches.clear();
  o.heads = {0, 1, 2, 3, 4, 5};
  EXPECT_NE(make_plan(o).hash(), partial);
  EXPECT_TRUE(make_plan(o).notes.empty());

  testing_traces::alter(o.traces[0], "/prompts/p1/layers/0", [](hid_t layer) {
    EXPECT_GE(H5Ldelete(layer, "o_proj", H5P_DEFAULT), 0);
    EXPECT_GE(H5Adelete(layer, "members"), 0);
  });
  o.overwrite = true;
  EXPECT_EQ(make_plan(o).notes,
            (std::vector<std::string>{"note: OUT.layers.csv skips w.h5: prompt p1 layer 0: "
                                      "the trace has no output projection (o_proj)"}));
  run(o);
  const Table table = read_table(layers_of(o));
  std::map<std::string, int> of_layer;
  for (const Fields& line : table.rows) {
    ++of_layer[line[table.column("prompt")] + "/" + line[table.column("layer")]];
  }
  EXPECT_EQ(of_layer, (std::map<std::string, int>{{"p0/0", 2}, {"p0/2", 2}, {"p1/2", 2}}));

  o.heads.clear();
  o.traces = {trace_};  // no layer has a projection: nobody is told
  EXPECT_TRUE(make_plan(o).notes.empty());
}

TEST_F(LayerErrorsTest, ExactOutputsOfZeroHaveNoErrorWhereNothingMoves) {
  ReplayOptions o = options();
  o.traces = {make_trace(folder_ / "zero.h5", {.value_scale = 0.0F, .hidden = kHidden})};
  o.algorithms = {"streamingllm"};
  o.budgets = {0.5};
  run(o);
  const Table table = read_table(layers_of(o));
  ASSERT_EQ(table.rows.size(), 1U);
  EXPECT_EQ(table.rows[0][table.column("out_rel_error")], "0");
}

}  // namespace
}  // namespace kvbench::test_layer_errors
