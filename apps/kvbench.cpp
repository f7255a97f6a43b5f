// The program: subcommands, error handling and exit codes.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iterator>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "commands.hpp"
#include "core/did_you_mean.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/temporary_files.hpp"
#include "exit_code.hpp"
#include "help.hpp"
#include "long_run.hpp"
#include "option_names.hpp"
#include "report/build_info.hpp"
#include "terminal.hpp"

namespace kvbench {
namespace {

bool ended_normally = false;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

// Does not allocate: memory may be exhausted.
[[noreturn]] void end(const char* what) {
  for (const char* part : {"kvbench: error: ", what, "\n"}) {
    [[maybe_unused]] const ssize_t told = ::write(STDERR_FILENO, part, std::strlen(part));
  }
  try {
    block_writes();
    remove_temporaries();
  } catch (...) {  // the next run replaces remaining files
  }
  std::_Exit(kExitIo);
}

void end_uncaught() {
  try {
    if (const std::exception_ptr error = std::current_exception()) {
      std::rethrow_exception(error);
    }
  } catch (const std::bad_alloc&) {
    end("out of memory; reduce --threads or set --memory-limit");
  } catch (const std::exception& e) {
    end(e.what());
  } catch (...) {
  }
  end("unknown error");
}

void end_by_exit() {
  if (!ended_normally) {
    end("a library ended the program (see its message); reducing --threads may help");
  }
}

// Makes uncaught exceptions (in a thread or parallel region, out of memory) and libraries that call
// exit(), such as OpenMP when it cannot create a thread, exit with code 3 and one line on stderr,
// after removing temporary files; written rows stay. Ignores SIGXFSZ, so that writes beyond the
// file size limit fail like those on a full disk. Must be called first.
void handle_abnormal_ends() {
  std::signal(SIGXFSZ, SIG_IGN);
  std::set_terminate(end_uncaught);
  std::atexit(end_by_exit);
}

// Marks the coming exit as a normal one and returns `code`.
int normal_end(int code) {
  ended_normally = true;
  return code;
}

// Prints one line, even if the message contains line breaks.
int fail(int code, std::string what) {
  std::replace_if(
      what.begin(), what.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  log("kvbench: error: {}\n", what);
  return code;
}

// Error message for an unknown option; empty if all are known. Reported before a missing option,
// which may be its consequence.
std::string unknown_option(const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands()) {
    for (const std::string& word : command->remaining()) {
      if (word.starts_with("--") && word.size() > 2) {
        const std::string name = word.substr(0, word.find('='));
        return fmt::format("{0}: unknown option {1}{2} (see kvbench help {0})", command->get_name(),
                           name, did_you_mean(name, option_names(*command, "--")));
      }
    }
  }
  return "";
}

// Error message for a missing argument or required option; empty if none is missing.
std::string missing_option(const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands()) {
    for (const CLI::Option* option : command->get_options()) {
      if (!option->get_required() || option->count() > 0) {
        continue;
      }
      std::string name =
          option->get_positional() ? option->get_name(true) : option->get_lnames()[0];
      const bool many = option->get_expected_max() > 1;
      if (many && name.ends_with('s')) {
        name.pop_back();
      }
      return fmt::format("{}: no {}, expected {}{}", command->get_name(), name,
                         many                           ? "at least one "
                         : option->get_positional()     ? ""
                         : option->get_snames().empty() ? "--" + name + " "
                                                        : "-" + option->get_snames()[0] + " ",
                         option->get_type_name());
    }
  }
  return "";
}

// Arguments in the order of CLI11. `--per-query all` becomes `--per-query=all`: CLI11 reads the
// word behind a flag as a trace.
std::vector<std::string> cli11_arguments(const std::vector<std::string>& arguments) {
  std::vector<std::string> out;
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (!out.empty() && out.back() == "--per-query" && (word == "bins" || word == "all")) {
      out.back() += "=" + word;
    } else {
      out.push_back(word);
    }
  }
  std::ranges::reverse(out);  // CLI11 reads from the end
  return out;
}

int program(int argc, char** argv) {
  command_arguments().assign(argv, argv + argc);
  CLI::App app(
      "kvbench replays the queries, keys and values of a language model through KV-cache "
      "compression algorithms and reports the error of the attention output, the memory and the "
      "time of each algorithm.");
  app.name("kvbench");
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.require_subcommand(1);
  app.set_version_flag(
      "--version",
      fmt::format("kvbench {} ({}{})", build_info().version, build_info().git_commit,
                  build_info().git_dirty ? ", modified" : ""),
      "Print version and commit and exit");
  app.set_help_all_flag("--help-all", "Print the help of every subcommand and exit");
  add_info(app);
  add_list(app);
  add_synth(app);
  add_replay(app);
  add_evaluate(app);
  add_cluster(app);
  add_summarize(app);
  add_merge(app);
  add_verify(app);
  add_help(app);
  app.footer(
      "\nExit codes: 0 done, 1 some rows failed (verify: differ), 2 bad usage or input, 3 I/O or "
      "device failure, 130 interrupted.\nDocumentation: docs/cli.md in the source tree.");
  try {
    app.parse(cli11_arguments(command_arguments()));
    check_stdout();
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) {
      app.exit(e);  // --help, --version
      try {
        check_stdout();
      } catch (const IoError& failed) {
        return fail(kExitIo, failed.what());
      }
      return kExitOk;
    }
    if (app.get_subcommands().empty()) {
      return fail(kExitBadInput, unknown_command(app, argc > 1 ? argv[1] : ""));
    }
    const std::string option = unknown_option(app);
    const std::string missing = e.get_name() == "RequiredError" ? missing_option(app) : "";
    return fail(kExitBadInput, !option.empty() ? option : !missing.empty() ? missing : e.what());
  } catch (const Exit& e) {
    return e.code;
  } catch (const InputError& e) {
    return fail(kExitBadInput, e.what());
  } catch (const IoError& e) {
    return fail(kExitIo, e.what());
  } catch (const std::bad_alloc&) {
    return fail(kExitIo, "out of memory; reduce --threads or set --memory-limit");
  } catch (const std::exception& e) {
    return fail(kExitIo, e.what());
  }
  return kExitOk;
}

}  // namespace

static int run(int argc, char** argv) {
  open_missing_streams();
  handle_abnormal_ends();
  try {
    end_on_signals();
    return normal_end(program(argc, argv));
  } catch (const std::exception& e) {
    return normal_end(fail(kExitIo, e.what()));
  }
}

}  // namespace kvbench

int main(int argc, char** argv) {
  return kvbench::run(argc, argv);
}
