#include "algorithms/policy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/parse_json.hpp"
#include "core/sha256.hpp"

namespace kvbench {
namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "kvbench-policy";
constexpr int kVersion = 1;
constexpr double kRounding = 1e-9;  // of a mean of decimal fractions

// Parses parts of one file; errors begin with its path.
class PolicyFile {
 public:
  explicit PolicyFile(const std::string& path) : path_(path) {}

  Policy read() const {
    constexpr std::size_t kMost = std::size_t{1} << 24;
    std::error_code error;
    const auto status = std::filesystem::status(path_, error);
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
      fail("not a regular file");  // opening a pipe waits for its writer
    }
    const std::optional<std::string> found = read_at_most(path_, kMost);
    if (!found) {
      fail("cannot be read");
    }
    const std::string& text = *found;
    if (text.size() > kMost) {
      fail(fmt::format("got more than {} bytes, expected a policy", kMost));
    }
    const json file = parse_json(text, fmt::format("--policy {}", path_));
    if (!file.is_object() || file.value("format", json()) != kFormat ||
        file.value("version", json()) != kVersion) {
      fail(fmt::format("expected a JSON object with \"format\": \"{}\", \"version\": {}", kFormat,
                       kVersion));
    }
    Policy out;
    out.name = std::filesystem::path(path_).stem().string();
    const auto plain = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '-' || c == '_' || c == '.';
    };
    if (!std::ranges::all_of(out.name, plain)) {
      fail("expected a file name of letters, digits, `-`, `_` and `.`");
    }
    Sha256 hash;
    hash.add(text);
    out.sha256 = hash.text();
    const json model = file.value("model", json(""));
    if (!model.is_string()) {
      fail(fmt::format("model: got {}, expected text", model.dump()));
    }
    out.model = model.get<std::string>();
    out.budget = fraction(file, "budget", "");
    const json layers = file.value("layers", json());
    if (!layers.is_array() || layers.empty()) {
      fail(
          "layers: expected a list of objects with `layer`, `algorithm` and `budget` (or `heads`)");
    }
    for (const json& one : layers) {
      add_layer(one, out);
    }
    if (const auto with =
            std::ranges::count_if(layers, [](const json& one) { return one.contains("bytes"); });
        with > 0 && with < std::ssize(layers)) {
      fail(fmt::format("layers: got `bytes` of {} of {} layers, expected all or none", with,
                       layers.size()));
    }
    double sum = 0.0;
    double bytes = 0.0;
    for (const auto& [number, layer] : out.layers) {
      for (const Policy::Choice& part : layer.parts) {
        sum += layer.bytes * part.budget / static_cast<double>(layer.parts.size());
      }
      bytes += layer.bytes;
    }
    const double mean = sum / bytes;
    if (mean > out.budget + kRounding) {
      fail(fmt::format("layers: got a mean budget of {}, expected at most `budget`, {}", mean,
                       out.budget));
    }
    return out;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(fmt::format("--policy {}: {}", path_, what));
  }

  double fraction(const json& object, const char* key, const std::string& where) const {
    const json value = object.value(key, json());
    const double out = value.is_number() ? value.get<double>() : -1.0;
    if (!(out >= 0.0 && out <= 1.0)) {
      fail(fmt::format("{}{}: got {}, expected a fraction in [0, 1]", where, key,
                       value.is_null() ? "nothing" : value.dump()));
    }
    return out;
  }

  // The integer `key` of an object in the list `list`.
  Index number(const json& object, const char* key, const std::string& list) const {
    constexpr Index kMost = Index{1} << 20;
    const json out = object.is_object() ? object.value(key, json()) : json();
    if (!out.is_number_unsigned() || out.get<std::uint64_t>() > kMost) {
      fail(fmt::format("{}: got {}, expected an object with `{}`, an integer of at least 0", list,
                       object.dump(), key));
    }
    return out.get<Index>();
  }

  void add_layer(const json& object, Policy& out) const {
    const Index layer = number(object, "layer", "layers");
    const std::string where = fmt::format("layer {}: ", layer);
    std::vector<Policy::Choice> parts;
    const bool by_head = object.contains("heads");
    for (const char* key : {"algorithm", "budget"}) {
      if (by_head && object.contains(key)) {
        fail(fmt::format("{}got `heads` and `{}`, expected one of them", where, key));
      }
    }
    if (!by_head) {
      parts.push_back(part(object, where, Scope::layer));
    } else {
      const json& heads = object["heads"];
      if (!heads.is_array() || heads.empty()) {
        fail(where + "heads: expected a list of objects with `kv_head`, `algorithm` and `budget`");
      }
      for (const json& one : heads) {
        const Index head = number(one, "kv_head", where + "heads");
        if (head != std::ssize(parts)) {
          fail(fmt::format("{}heads: got kv_head {}, expected {}", where, head, parts.size()));
        }
        parts.push_back(part(one, fmt::format("{}KV head {}: ", where, head), Scope::head));
      }
    }
    const json bytes = object.value("bytes", json(1.0));
    if (!bytes.is_number() || !(bytes.get<double>() > 0.0 && bytes.get<double>() < 1e30)) {
      fail(fmt::format("{}bytes: got {}, expected a number above 0", where, bytes.dump()));
    }
    if (!out.layers.emplace(layer, Policy::Layer{std::move(parts), by_head, bytes.get<double>()})
             .second) {
      fail(where + "duplicate layer");
    }
  }

  // The algorithm and budget of an object. `widest`: heads that may share the budget.
  Policy::Choice part(const json& object, const std::string& where, Scope widest) const {
    const json spec = object.value("algorithm", json());
    if (!spec.is_string()) {
      fail(where + "algorithm: expected text as of --algorithm");
    }
    std::vector<Variant> variants;
    try {
      variants = expand_algorithms({spec.get<std::string>()}, Protocol::prefill);
    } catch (const InputError& e) {
      fail(where + e.what());
    }
    if (variants.size() != 1) {
      fail(fmt::format("{}{}: got {} algorithms, expected one", where, spec.get<std::string>(),
                       variants.size()));
    }
    Variant& variant = variants.front();
    if (variant.sized()) {
      fail(fmt::format("{}{}: has a size of its own, expected an algorithm with a budget", where,
                       variant.name()));
    }
    if (variant.scope() > widest) {
      fail(fmt::format("{}{}: shares its budget over {}, expected one that does not", where,
                       variant.name(), variant.scope() == Scope::layers ? "layers" : "heads"));
    }
    variant.by_set.clear();
    const double budget = fraction(object, "budget", where);
    return {std::move(variant), budget};
  }

  const std::string& path_;
};

// The name alone, in lower case, of ORGANISATION/NAME @ REVISION.
std::string plain_name(std::string_view model) {
  model = model.substr(0, model.find(" @ "));
  model.remove_prefix(model.rfind('/') + 1);  // 0 without one
  std::string out(model);
  std::ranges::transform(out, out.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  });
  return out;
}

}  // namespace

std::string Policy::params() const {
  constexpr std::size_t kDigits = 8;
  return fmt::format("name={};sha256={}", name, sha256.substr(0, kDigits));
}

Policy read_policy(const std::string& path) {
  return PolicyFile(path).read();
}

void add_policies(const std::vector<std::string>& paths, Scores scores,
                  std::vector<Variant>& variants) {
  std::set<std::string> names;
  for (const std::string& path : paths) {
    const auto policy = std::make_shared<const Policy>(read_policy(path));
    if (!names.insert(policy->name).second) {
      throw InputError(fmt::format("--policy {}: duplicate name {}", path, policy->name));
    }
    Variant out = policy->layers.begin()->second.parts.front().variant;
    out.policy = policy;
    out.policy_params = policy->params();
    out.declared_scores = "none";
    JobFacts& facts = out.policy_facts.emplace();
    for_each_part(*policy, [&](const Policy::Choice& part) {
      facts.random |= part.variant.random();
      facts.scope = std::max(facts.scope, part.variant.scope());
      const std::string text = part.variant.scores_text(scores);
      if (text != "none" && out.declared_scores != name(Scores::all)) {
        out.declared_scores = text;
      }
    });
    variants.push_back(std::move(out));
  }
}

void check_model(const Policy& policy, const std::string& trace, const std::string& model) {
  if (!policy.model.empty() && !model.empty() && plain_name(policy.model) != plain_name(model)) {
    throw InputError(
        fmt::format("policy {}: model: got {}, expected that of {}, {} (or no `model`)",
                    policy.name, policy.model, trace, model));
  }
}

std::vector<Variant> policy_layer(const Variant& policy, Index layer, Index kv_heads) {
  const auto at = policy.policy->layers.find(layer);
  if (at == policy.policy->layers.end()) {
    throw InputError(
        fmt::format("policy {}: no layer {}, which the plan replays", policy.policy->name, layer));
  }
  const std::vector<Policy::Choice>& parts = at->second.parts;
  if (at->second.by_head && std::ssize(parts) != kv_heads) {
    throw InputError(fmt::format("policy {}: layer {}: got {} heads, expected the trace's {}",
                                 policy.policy->name, layer, parts.size(), kv_heads));
  }
  std::vector<Variant> out;
  for (const Policy::Choice& part : parts) {
    Variant& one = out.emplace_back(part.variant);
    one.policy_params = policy.policy_params;
    one.declared_scores = policy.declared_scores;
    one.policy_budget = part.budget;
  }
  return out;
}

}  // namespace kvbench
