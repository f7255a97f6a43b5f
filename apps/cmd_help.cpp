// help and completion, generated from the definitions of the commands.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "algorithms/grid.hpp"
#include "algorithms/registry.hpp"
#include "commands.hpp"
#include "core/did_you_mean.hpp"
#include "core/error.hpp"
#include "option_names.hpp"
#include "parse_enum.hpp"
#include "report/build_info.hpp"
#include "report/schema.hpp"

namespace kvbench {
namespace {

// Null for an empty name: the program itself.
const CLI::App* command_of(const CLI::App& app, const std::string& name) {
  if (name.empty()) {
    return nullptr;
  }
  const auto found =
      app.get_subcommands([&](const CLI::App* sub) { return sub->get_name() == name; });
  if (found.empty()) {
    throw InputError(unknown_command(app, name));
  }
  return found.front();
}

enum class Shell { bash, zsh };

constexpr std::string_view name(Shell s) {
  return s == Shell::bash ? "bash" : "zsh";
}

// Alternatives of a type name such as "past|all", "cpu|cuda[:i]|auto" or "keys,values"; empty
// unless all are plain words.
std::vector<std::string> alternatives(std::string_view type) {
  std::vector<std::string> out(1);
  bool optional = false;
  for (const char c : type) {
    optional = (optional || c == '[') && c != ']';
    if (c == '|' || c == ',') {
      out.emplace_back();
    } else if (!optional && c != ']') {
      if ((c < 'a' || c > 'z') && (c < '0' || c > '9')) {
        return {};
      }
      out.back() += c;
    }
  }
  return out.size() > 1 ? out : std::vector<std::string>();
}

// Named values of an option; empty for numbers, text and files.
std::vector<std::string> values_of(const CLI::App& app, const CLI::Option& option) {
  const std::string type = option.get_type_name();
  std::vector<std::string> out;
  if (type == "SUBCOMMAND") {
    out = subcommand_names(app);
  } else if (type == "ALGORITHM" || type.starts_with("NAME,")) {
    for (const Method& m : methods()) {
      out.push_back(m.info.name);
    }
    std::ranges::copy(method_set_names(), std::back_inserter(out));
  } else if (type.starts_with("COLUMN")) {
    out = schema_header();
  } else {
    out = alternatives(type);
  }
  return out;
}

std::string option_words(const CLI::App& app) {
  std::vector<std::string> out;
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) {
      out.push_back(option->get_name(false, true));
    }
  }
  std::string words = joined(out);
  std::ranges::replace(words, ',', ' ');
  return words;
}

// Sets `options` and `values` by `command` and `previous`; both shells read it.
std::string cases(const CLI::App& app) {
  std::string commands;
  std::string options;
  for (const std::string& name : subcommand_names(app)) {
    const CLI::App* sub = app.get_subcommand(name);
    std::string positional;
    for (const CLI::Option* option : sub->get_options()) {
      const std::string values = joined(values_of(app, *option));
      if (values.empty()) {
        continue;
      }
      if (option->get_positional()) {
        positional = fmt::format(" values='{}'", values);
        continue;
      }
      std::string patterns;
      for (const std::string& word : option->get_lnames()) {
        patterns += fmt::format("{}{}:--{}", patterns.empty() ? "" : "|", name, word);
      }
      options += fmt::format("    {}) values='{}' ;;\n", patterns, values);
    }
    commands += fmt::format("    {}) options='{}'{} ;;\n", name, option_words(*sub), positional);
  }
  return fmt::format(
      "  case $command in\n    '') options='{}' values='{}' ;;\n{}  esac\n"
      "  case $command:$previous in\n{}  esac\n",
      option_words(app), joined(subcommand_names(app)), commands, options);
}

// Finds the word to complete, the previous word and the command. bash also splits words at @ and =:
// of `--algorithm=h2o,@me` it passes and replaces only `me`. `cut` is the part before.
constexpr std::string_view kBashBegin = R"(_kvbench() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}
  local command= options= values= list= cut= i
  local last=$word before=${{COMP_LINE:0:COMP_POINT}}
  local typed=${{before##*[[:space:]]}}
  if [[ -n $typed && $typed != "$word" ]]; then
    before=${{before%"$typed"}}
    before=${{before%"${{before##*[![:space:]]}}"}}
    previous=${{before##*[[:space:]]}} word=$typed
    [[ $typed == --*=* ]] && previous=${{typed%%=*}} word=${{typed#*=}}
    [[ $last == = ]] && last=
    cut=${{word%"$last"}}
  fi
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case ${{COMP_WORDS[i]}} in
      {}) command=${{COMP_WORDS[i]}}; break ;;
    esac
  done
)";

// An empty COMPREPLY makes bash complete file names.
constexpr std::string_view kBashEnd = R"(  COMPREPLY=()
  if [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$word"))
  elif [[ -n $values ]]; then
    [[ $word == *,* ]] && list=${word%,*},
    COMPREPLY=($(compgen -P "$list" -W "$values" -- "${word##*,}"))
    COMPREPLY=("${COMPREPLY[@]#"$cut"}")
  fi
}
complete -o bashdefault -o default -F _kvbench kvbench
)";

constexpr std::string_view kZshBegin = R"(_kvbench() {{
  local word=${{words[CURRENT]}} previous=${{words[CURRENT-1]}}
  local command= options= values= i
  for i in ${{words[2,CURRENT-1]}}; do
    case $i in
      {}) command=$i; break ;;
    esac
  done
)";

constexpr std::string_view kZshEnd = R"(  if [[ $word == -* ]]; then
    compadd -- ${=options}
  elif [[ -n $values ]]; then
    compset -P '*,'
    compadd -- ${=values}
  else
    _files
  fi
}
if [[ $funcstack[1] == _kvbench ]]; then
  _kvbench "$@"
else
  compdef _kvbench kvbench
fi
)";

// The script for `shell`, generated from `app`. Throws InputError on an unknown shell.
std::string completion_script(const CLI::App& app, const std::string& shell) {
  const Shell which = parse_enum<Shell>("completion", shell, {Shell::bash, Shell::zsh});
  const std::string pattern = fmt::format("{}", fmt::join(subcommand_names(app), "|"));
  const bool bash = which == Shell::bash;
  std::string out = bash ? "" : "#compdef kvbench\n";
  out += fmt::format("# Completion of kvbench {}: kvbench completion {}\n", build_info().version,
                     shell);
  out += bash ? fmt::format(kBashBegin, pattern) : fmt::format(kZshBegin, pattern);
  out += cases(app);
  out += bash ? kBashEnd : kZshEnd;
  return out;
}

}  // namespace

std::string unknown_command(const CLI::App& app, const std::string& name) {
  const std::vector<std::string> names = subcommand_names(app);
  const std::string got = name.empty() ? "no subcommand"
                          : name.starts_with('-')
                              ? fmt::format("'{}' in place of a subcommand", name)
                              : fmt::format("the subcommand '{}'", name);
  return fmt::format("got {}{}, expected one of {}{}", got, did_you_mean(name, names),
                     fmt::join(names, ", "), name.empty() ? " (see kvbench help)" : "");
}

void add_help(CLI::App& app) {
  const auto word = std::make_shared<std::string>();
  const auto add = [&](const char* name, const char* what, const char* type, bool required) {
    CLI::App* sub = app.add_subcommand(name, what);
    sub->add_option(required ? "shell" : "name", *word,
                    required ? "Shell" : "Command [default: the program itself]")
        ->required(required)
        ->type_name(type);
    return sub;
  };
  add("help", "Print the help of a command", "SUBCOMMAND", false)->callback([&app, word] {
    const CLI::App* sub = command_of(app, *word);
    const auto normal = CLI::AppFormatMode::Normal;
    fmt::print("{}", sub == nullptr ? app.get_formatter()->make_help(&app, app.get_name(), normal)
                                    : sub->help(app.get_name(), normal));
  });
  CLI::App* completion =
      add("completion", "Print a completion script for a shell", "bash|zsh", true);
  completion->footer(
      "\nExample, for the current shell:\n"
      "  source <(kvbench completion bash)");
  completion->callback([&app, word] { fmt::print("{}", completion_script(app, *word)); });
}

}  // namespace kvbench
