#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "algorithms/registry.hpp"
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

// What layers have, each text once, and how many have it: "2560 positions (3 of 8 layers)".
struct Held {
  std::set<std::string> texts;
  std::size_t layers = 0;
  std::size_t of = 0;

  std::string text(std::string_view before) const {
    return fmt::format("{}{}{}", before, fmt::join(texts, " and "),
                       layers < of ? fmt::format(" ({} of {} layers)", layers, of) : "");
  }
};

// `text` of a layer is empty if it has none.
template <class Text>
Held held(const TraceMeta& meta, const Text& text) {
  Held out;
  for (const PromptMeta& prompt : meta.prompts) {
    for (const LayerMeta& l : prompt.layers) {
      ++out.of;
      if (const std::string one = text(l); !one.empty()) {
        out.texts.insert(one);
        ++out.layers;
      }
    }
  }
  return out;
}

std::string tables_text(const TraceMeta& meta) {
  const Held tables = held(meta, [](const LayerMeta& l) {
    return l.rope_positions > 0
               ? fmt::format("{} positions, {} channels", l.rope_positions, l.rope_dim)
               : "";
  });
  return tables.layers > 0     ? tables.text("; rotary tables: ")
         : meta.rope == "post" ? "; no rotary tables"
                               : "";
}

// Hidden sizes of the output projections, and whether residual norms are stored; empty if the trace
// has neither.
std::string projection_text(const TraceMeta& meta) {
  const Held weights =
      held(meta, [](const LayerMeta& l) { return l.hidden > 0 ? std::to_string(l.hidden) : ""; });
  const Held norms =
      held(meta, [](const LayerMeta& l) { return l.has_residual_norm ? "residual norms" : ""; });
  return weights.layers + norms.layers == 0
             ? ""
             : fmt::format("{}; {}",
                           weights.layers == 0 ? "no weights" : weights.text("hidden size "),
                           norms.layers == 0 ? "no residual norms" : norms.text(""));
}

// How many layers have a window, and how many methods need others; empty if none has one.
std::string window_text(const TraceMeta& meta) {
  std::set<Index> sizes;
  std::set<Index> all;  // whatever prompts have them
  std::set<Index> windowed;
  for (const PromptMeta& prompt : meta.prompts) {
    for (const LayerMeta& l : prompt.layers) {
      all.insert(l.layer);
      if (l.window) {
        sizes.insert(*l.window);
        windowed.insert(l.layer);
      }
    }
  }
  const auto hidden = std::ranges::count_if(methods(), [](const Method& m) {
    return m.compress != nullptr && m.joint == 0 && m.info.holds > Holds::placed;
  });
  return windowed.empty()
             ? ""
             : fmt::format(
                   "{} of {} layers have a window of {} tokens{}", windowed.size(), all.size(),
                   fmt::join(sizes, " or "),
                   windowed.size() == all.size()
                       ? ""
                       : fmt::format(": replay --layers global runs {} more methods", hidden));
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
  struct Column {
    std::string_view name;
    std::function<std::string(const LayerMeta&, const LayerNorms&)> text;
    std::function<bool(const LayerMeta&)> used = {};  // shown if some layer uses it; empty: always
  };
  using L = const LayerMeta&;
  using N = const LayerNorms&;
  const auto size = [](LayerTensor rows, Index LayerMeta::*member) {
    return [=](L l, N) { return l.has(rows) ? std::to_string(l.*member) : "-"; };
  };
  const auto norm = [](auto member) { return [=](L, N n) { return norms_text(n.*member); }; };
  std::vector<Column> columns{
      {"layer", size(LayerTensor::keys, &LayerMeta::layer)},
      {"q_heads", size(LayerTensor::queries, &LayerMeta::q_heads)},
      {"kv_heads", size(LayerTensor::keys, &LayerMeta::kv_heads)},
      {"n", size(LayerTensor::keys, &LayerMeta::n)},
      {"nq", size(LayerTensor::queries, &LayerMeta::nq)},
      {"d", size(LayerTensor::keys, &LayerMeta::d)},
      {"dv", size(LayerTensor::values, &LayerMeta::dv)},
      {"scale", [](L l, N) { return fmt::format("{:.6g}", l.scale); }},
      {"window", [](L l, N) { return l.window ? std::to_string(*l.window) : "-"; },
       [](L l) { return l.window.has_value(); }},
      {"sink logits",
       [](L l, N) {
         return l.sink_logit.empty()
                    ? "-"
                    : fmt::format("{:.3g} to {:.3g}", std::ranges::min(l.sink_logit),
                                  std::ranges::max(l.sink_logit));
       },
       [](L l) { return !l.sink_logit.empty(); }},
      {"cache of", [](L l, N) { return std::to_string(l.shares_cache_of.value_or(l.layer)); },
       [](L l) { return l.shares_cache_of.has_value(); }},
      {"fisher", [](L l, N) { return l.fisher ? fmt::format("{:.4g}", *l.fisher) : "-"; },
       [](L l) { return l.fisher.has_value(); }},
      {"retrieval",
       [](L l, N) { return l.retrieval_heads.empty() ? "-" : retrieval_text(l.retrieval_heads); },
       [](L l) { return !l.retrieval_heads.empty(); }}};
  if (norms != nullptr) {
    columns.push_back({"key norm", norm(&LayerNorms::keys)});
    columns.push_back({"query norm", norm(&LayerNorms::queries)});
    columns.push_back({"value norm", norm(&LayerNorms::values)});
  }
  std::erase_if(columns, [&](const Column& c) {
    return c.used && std::ranges::none_of(prompt.layers, c.used);
  });
  std::vector<std::vector<std::string>> rows(1 + prompt.layers.size());
  for (const Column& c : columns) {
    rows[0].emplace_back(c.name);
    for (std::size_t i = 0; i < prompt.layers.size(); ++i) {
      rows[i + 1].push_back(
          c.text(prompt.layers[i], norms == nullptr ? LayerNorms{} : (*norms)[i]));
    }
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
  if (const std::string text_of = projection_text(meta); !text_of.empty()) {
    line("o_proj", text_of);
  }
  if (const std::string text_of = window_text(meta); !text_of.empty()) {
    line("windows", text_of);
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
  Json out{{"layer", l.layer},
           {"q_heads", l.q_heads},
           {"kv_heads", l.kv_heads},
           {"n", l.n},
           {"nq", l.nq},
           {"d", l.d},
           {"dv", l.dv},
           {"scale", l.scale},
           {"fisher", or_null(l.fisher)},
           {"retrieval_heads", l.retrieval_heads},
           {"sink_logit", l.sink_logit},
           {"window", or_null(l.window)},
           {"shares_cache_of", or_null(l.shares_cache_of)},
           {"rope_positions", l.rope_positions},
           {"rope_dim", l.rope_dim},
           {"hidden", l.hidden},
           {"residual_norm", l.has_residual_norm}};
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
           {"scale", or_null(meta.scale)},
           {"values_read", !norms.empty()},
           {"prompts", Json::array()}};
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

void run(const InfoCommand& options) {
  Json all = Json::array();
  bool first = true;
  for (const std::string& path : options.inputs) {
    const TraceReader reader(path, Require::keys);
    const Norms norms = options.no_values ? Norms() : read_values(reader);
    if (options.json) {
      all.push_back(to_json(reader.meta(), norms));
    } else {
      fmt::print("{}{}", first ? "" : "\n", report(reader.meta(), norms));
      first = false;
    }
  }
  if (options.json) {
    // Names in a trace may be invalid UTF-8, which JSON does not allow.
    fmt::print("{}\n", all.dump(2, ' ', false, Json::error_handler_t::replace));
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
