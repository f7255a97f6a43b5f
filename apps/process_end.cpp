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

bool by_itself = false;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

// Without memory of its own: there may be none.
[[noreturn]] void end(const char* what) {
  for (const char* part : {"kvbench: error: ", what, "\n"}) {
    [[maybe_unused]] const ssize_t told = ::write(STDERR_FILENO, part, std::strlen(part));
  }
  try {
    hold_writes();
    remove_temporaries();
  } catch (...) {  // what is left is replaced by the next run
  }
  std::_Exit(kExitIo);
}

void end_uncaught() {
  try {
    if (const std::exception_ptr error = std::current_exception()) {
      std::rethrow_exception(error);
    }
  } catch (const std::bad_alloc&) {
    end("out of memory; fewer --threads or a --memory-limit need less");
  } catch (const std::exception& e) {
    end(e.what());
  } catch (...) {
  }
  end("an error of an unknown kind");
}

void end_by_exit() {
  if (!by_itself) {
    end("a library ended the program (it says why); fewer --threads may help");
  }
}

}  // namespace

void take_over_ends() {
  std::signal(SIGXFSZ, SIG_IGN);
  std::set_terminate(end_uncaught);
  std::atexit(end_by_exit);
}

int ends_itself(int code) {
  by_itself = true;
  return code;
}

}  // namespace kvbench
