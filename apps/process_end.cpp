#include "process_end.hpp"

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>

#include "core/files.hpp"
#include "core/temporary_files.hpp"
#include "exit_code.hpp"

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

}  // namespace

void handle_abnormal_ends() {
  std::signal(SIGXFSZ, SIG_IGN);
  std::set_terminate(end_uncaught);
  std::atexit(end_by_exit);
}

int normal_end(int code) {
  ended_normally = true;
  return code;
}

}  // namespace kvbench
