#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "commands.hpp"
#include "core/error.hpp"
#include "core/printable.hpp"
#include "info_extra.hpp"
#include "replay/progress.hpp"
#include "terminal.hpp"
#include "trace/inspect.hpp"
#include "trace/reader.hpp"

namespace kvbench {
namespace {

using Json = nlohmann::ordered_json;

struct InfoCommand {
  std::vector<std::string> inputs;
  bool no_values = false;
  bool json = false;
};

// Norms of a trace, [prompt][layer]; empty when values were not read.
using Norms = std::vector<std::vector<LayerNorms>>;

std::string size_text(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 4> kUnits{"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) {
    return fmt::format("{} bytes", bytes);
  }
  double size = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (size >= 1024 && unit + 1 < kUnits.size()) {
    size /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {} ({} bytes)", size, kUnits[unit], bytes);
}

std::string_view or_dash(std::string_view text) {
  return text.empty() ? "-" : text;
}

// Rows of equal length as right-aligned columns, two spaces apart.
std::string aligned(const std::vector<std::vector<std::string>>& rows, std::string_view indent) {
  std::vector<std::size_t> width(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      width[c] = std::max(width[c], row[c].size());
    }
  }
  std::string text;
  for (const auto& row : rows) {
    text += indent;
    for (std::size_t c = 0; c < row.size(); ++c) {
      fmt::format_to(std::back_inserter(text), "{}{:>{}}", c == 0 ? "" : "  ", row[c], width[c]);
    }
    text += '\n';
  }
  return text;
}

std::string norms_text(const std::optional<NormRange>& r) {
  return r ? fmt::format("{:.3g} / {:.3g} / {:.3g}", r->min, r->median, r->max) : "-";
}

// The rotary tables, and how many layers have them.
std::string tables_text(const TraceMeta& meta) {
  std::size_t layers = 0;
  std::set<std::pair<Index, Index>> shapes;
  std::size_t with = 0;
  for (const PromptMeta& prompt : meta.prompts) {
    for (const LayerMeta& l : prompt.layers) {
      ++layers;
      if (l.rope_positions > 0) {
        ++with;
        shapes.emplace(l.rope_positions, l.rope_dim);
      }
    }
  }
  if (with == 0) {
    return meta.rope == "post" ? "; no rotary tables" : "";
  }
  std::string text = "; rotary tables:";
  for (const auto& [positions, dim] : shapes) {
    text += fmt::format("{} {} positions, {} channels", text.back() == ':' ? "" : " and", positions,
                        dim);
  }
  return text + (with < layers ? fmt::format(" ({} of {} layers)", with, layers) : "");
}

// Hidden sizes of the output projections, and whether residual norms are stored.
std::string projection_text(const TraceMeta& meta) {
  std::size_t layers = 0;
  std::size_t with = 0;
  std::size_t normed = 0;
  std::set<Index> sizes;
  for (const PromptMeta& prompt : meta.prompts) {
    for (const LayerMeta& l : prompt.layers) {
      ++layers;
      normed += l.has_residual_norm ? 1 : 0;
      if (l.hidden > 0) {
        ++with;
        sizes.insert(l.hidden);
      }
    }
  }
  const auto of_layers = [layers](std::size_t count) {
    return count < layers ? fmt::format(" ({} of {} layers)", count, layers) : std::string();
  };
  return fmt::format(
      "{}; {}{}",
      with == 0 ? "no weights"
                : fmt::format("hidden size {}{}", fmt::join(sizes, " and "), of_layers(with)),
      normed == 0 ? "no residual norms" : "residual norms", normed == 0 ? "" : of_layers(normed));
}

bool has_projection(const TraceMeta& meta) {
  return std::any_of(meta.prompts.begin(), meta.prompts.end(), [](const PromptMeta& p) {
    return std::any_of(p.layers.begin(), p.layers.end(),
                       [](const LayerMeta& l) { return l.hidden > 0 || l.has_residual_norm; });
  });
}

std::string retrieval_text(const std::vector<std::uint8_t>& heads) {
  std::string text;
  for (std::size_t h = 0; h < heads.size(); ++h) {
    if (heads[h] != 0) {
      text += fmt::format("{}{}", text.empty() ? "" : ",", h);
    }
  }
  return text.empty() ? "none" : text;
}

std::string layer_table(const PromptMeta& prompt, const std::vector<LayerNorms>* norms) {
  const auto& layers = prompt.layers;
  // Optional columns only where the trace uses them: the table must fit a terminal.
  const bool fisher = std::any_of(layers.begin(), layers.end(),
                                  [](const LayerMeta& l) { return l.fisher.has_value(); });
  const bool retrieval = std::any_of(layers.begin(), layers.end(),
                                     [](const LayerMeta& l) { return !l.retrieval_heads.empty(); });
  std::vector<std::vector<std::string>> rows{
      {"layer", "q_heads", "kv_heads", "n", "nq", "d", "dv", "scale"}};
  const bool window =
      std::any_of(layers.begin(), layers.end(), [](const LayerMeta& l) { return bool(l.window); });
  const bool sinks = std::any_of(layers.begin(), layers.end(),
                                 [](const LayerMeta& l) { return !l.sink_logit.empty(); });
  if (window) {
    rows.front().push_back("window");
  }
  const bool shared = std::any_of(layers.begin(), layers.end(),
                                  [](const LayerMeta& l) { return bool(l.shares_cache_of); });
  if (sinks) {
    rows.front().push_back("sink logits");
  }
  if (shared) {
    rows.front().push_back("cache of");
  }
  if (fisher) {
    rows.front().push_back("fisher");
  }
  if (retrieval) {
    rows.front().push_back("retrieval");
  }
  if (norms != nullptr) {
    rows.front().insert(rows.front().end(), {"key norm", "query norm", "value norm"});
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerMeta& l = layers[i];
    std::vector<std::string> row;
    const auto size_or_dash = [](bool stored, Index size) {
      return stored ? std::to_string(size) : std::string("-");
    };
    row.push_back(std::to_string(l.layer));
    row.push_back(size_or_dash(l.has(Rows::queries), l.q_heads));
    row.push_back(std::to_string(l.kv_heads));
    row.push_back(std::to_string(l.n));
    row.push_back(size_or_dash(l.has(Rows::queries), l.nq));
    row.push_back(std::to_string(l.d));
    row.push_back(size_or_dash(l.has(Rows::values), l.dv));
    row.push_back(fmt::format("{:.6g}", l.scale));
    if (window) {
      row.push_back(l.window ? std::to_string(*l.window) : "-");
    }
    if (sinks) {
      row.push_back(l.sink_logit.empty()
                        ? "-"
                        : fmt::format("{:.3g} to {:.3g}", std::ranges::min(l.sink_logit),
                                      std::ranges::max(l.sink_logit)));
    }
    if (shared) {
      row.push_back(std::to_string(l.shares_cache_of.value_or(l.layer)));
    }
    if (fisher) {
      row.push_back(l.fisher ? fmt::format("{:.4g}", *l.fisher) : "-");
    }
    if (retrieval) {
      row.push_back(l.retrieval_heads.empty() ? "-" : retrieval_text(l.retrieval_heads));
    }
    if (norms != nullptr) {
      const LayerNorms& m = (*norms)[i];
      row.insert(row.end(), {norms_text(m.keys), norms_text(m.queries), norms_text(m.values)});
    }
    rows.push_back(std::move(row));
  }
  return aligned(rows, "    ");
}

// Bytes of the prompt's keys and values, where layers share them; otherwise empty.
std::string shared_text(const PromptMeta& prompt, DType dtype) {
  std::uint64_t elements = 0;
  std::vector<Index> shared;
  for (const LayerMeta& l : prompt.layers) {
    if (l.shares_cache_of) {
      shared.push_back(l.layer);
    } else {
      elements += static_cast<std::uint64_t>(l.kv_heads * l.n * (l.d + l.dv));
    }
  }
  return shared.empty()
             ? ""
             : fmt::format(
                   "    cache: {}, without layers {}, which share those of others\n",
                   size_text(elements * static_cast<std::uint64_t>(bytes_per_element(dtype))),
                   fmt::join(shared, ", "));
}

// Over all prompts.
std::size_t layers_beyond_float32(const Norms& norms) {
  std::size_t out = 0;
  for (const auto& prompt : norms) {
    out += static_cast<std::size_t>(std::ranges::count(prompt, false, &LayerNorms::in_float32));
  }
  return out;
}

std::string report(const TraceMeta& meta, const Norms& norms) {
  std::string text = printable(meta.path) + "\n";
  const auto line = [&text](std::string_view label, std::string_view value) {
    fmt::format_to(std::back_inserter(text), "  {:<8} {}\n", label, printable(value));
  };
  line("size", size_text(meta.file_bytes));
  line("model", or_dash(meta.model));
  line("source", or_dash(meta.source));
  line("created", or_dash(meta.created));
  line("dtype", name(meta.dtype));
  line("rope", meta.rope + tables_text(meta));
  if (has_projection(meta)) {
    line("o_proj", projection_text(meta));
  }
  line("scale", meta.scale ? fmt::format("{}", *meta.scale) : "1/sqrt(d)");
  line("values", norms.empty() ? "not read (--no-values)"
                               : "all finite; norms below are min / median / max over all heads");
  if (const std::size_t wide = layers_beyond_float32(norms); wide > 0) {
    line("", fmt::format("products exceed float32 in {} layer{}: replay needs --precision float64",
                         wide, wide == 1 ? "" : "s"));
  }
  for (std::size_t p = 0; p < meta.prompts.size(); ++p) {
    const PromptMeta& prompt = meta.prompts[p];
    fmt::format_to(std::back_inserter(text), "\n  prompt {}: {} tokens{}{}\n", printable(prompt.id),
                   prompt.n_tokens,
                   prompt.text_id.empty() ? "" : ", text " + printable(prompt.text_id),
                   prompt.has_token_ids ? ", with token ids" : "");
    text += layer_table(prompt, norms.empty() ? nullptr : &norms[p]);
    text += shared_text(prompt, meta.dtype);
    text += extra_text(prompt);
  }
  return text;
}

// null if the rows are not stored.
Json norms_json(const std::optional<NormRange>& r) {
  return r ? Json{{"min", r->min}, {"median", r->median}, {"max", r->max}} : Json();
}

Json layer_json(const LayerMeta& l) {
  Json out{{"layer", l.layer}, {"q_heads", l.q_heads}, {"kv_heads", l.kv_heads},
           {"n", l.n},         {"nq", l.nq},           {"d", l.d},
           {"dv", l.dv},       {"scale", l.scale}};
  out["fisher"] = l.fisher ? Json(*l.fisher) : Json();
  out["retrieval_heads"] = l.retrieval_heads;
  out["sink_logit"] = l.sink_logit;
  out["window"] = l.window ? Json(*l.window) : Json();
  out["shares_cache_of"] = l.shares_cache_of ? Json(*l.shares_cache_of) : Json();
  out["rope_positions"] = l.rope_positions;
  out["rope_dim"] = l.rope_dim;
  out["hidden"] = l.hidden;
  out["residual_norm"] = l.has_residual_norm;
  add_extra(l, out);
  return out;
}

Json to_json(const TraceMeta& meta, const Norms& norms) {
  Json out{{"path", meta.path},
           {"file_bytes", meta.file_bytes},
           {"model", meta.model},
           {"source", meta.source},
           {"created", meta.created},
           {"dtype", std::string(name(meta.dtype))},
           {"rope", meta.rope},
           {"scale", meta.scale ? Json(*meta.scale) : Json()},
           {"values_read", !norms.empty()}};
  out["prompts"] = Json::array();
  for (std::size_t p = 0; p < meta.prompts.size(); ++p) {
    const PromptMeta& prompt = meta.prompts[p];
    Json entry{{"id", prompt.id},
               {"n_tokens", prompt.n_tokens},
               {"text_id", prompt.text_id},
               {"has_token_ids", prompt.has_token_ids},
               {"layers", Json::array()}};
    for (std::size_t l = 0; l < prompt.layers.size(); ++l) {
      Json layer = layer_json(prompt.layers[l]);
      if (!norms.empty()) {
        const LayerNorms& m = norms[p][l];
        layer["key_norm"] = norms_json(m.keys);
        layer["query_norm"] = norms_json(m.queries);
        layer["value_norm"] = norms_json(m.values);
        layer["in_float32"] = m.in_float32;
      }
      entry["layers"].push_back(std::move(layer));
    }
    out["prompts"].push_back(std::move(entry));
  }
  return out;
}

Norms read_values(const TraceReader& reader) {
  std::unique_ptr<Progress> progress;
  return measure_norms(reader, [&progress](const HeadVisit& visit) {
    if (progress == nullptr) {
      progress = std::make_unique<Progress>(static_cast<Index>(visit.total), "checking", "heads");
    }
    progress->tick();
  });
}

void print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw IoError("info: cannot write to standard output");
  }
}

void run(const InfoCommand& options) {
  Json all = Json::array();
  bool first = true;
  for (const std::string& path : options.inputs) {
    const TraceReader reader(path, Require::keys);
    const Norms norms = options.no_values ? Norms() : read_values(reader);
    if (options.json) {
      all.push_back(to_json(reader.meta(), norms));
    } else {
      print((first ? "" : "\n") + report(reader.meta(), norms));
      first = false;
    }
  }
  if (options.json) {
    // Names in a trace may be invalid UTF-8, which JSON does not allow.
    print(all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  }
}

}  // namespace

void add_info(CLI::App& app) {
  const auto o = std::make_shared<InfoCommand>();
  CLI::App* sub = app.add_subcommand("info", "Show and validate the contents of traces");
  sub->add_option("traces", o->inputs, "Trace files (docs/trace_format.md)")
      ->required()
      ->type_name("TRACE.h5");
  sub->add_flag("--no-values", o->no_values, "Check only the structure, without reading values");
  sub->add_flag("--json", o->json, "Print a JSON array with one object per trace");
  sub->callback([o] { run(*o); });
}

}  // namespace kvbench
