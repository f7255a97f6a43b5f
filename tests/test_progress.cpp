#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/files.hpp"
#include "replay/progress.hpp"

namespace kvbench::test_progress {
namespace {

/// A terminal of its own: what is written to `terminal` is read from `screen`.
class Pty {
 public:
  explicit Pty(unsigned short width) : screen(::posix_openpt(O_RDWR | O_NOCTTY)) {
    if (screen < 0 || ::grantpt(screen) != 0 || ::unlockpt(screen) != 0) {
      return;
    }
    terminal = ::open(::ptsname(screen), O_RDWR | O_NOCTTY);
    winsize size{};
    size.ws_row = 24;
    size.ws_col = width;
    ::ioctl(terminal, TIOCSWINSZ, &size);
    ::fcntl(screen, F_SETFL, O_NONBLOCK);
  }
  ~Pty() {
    ::close(terminal);
    ::close(screen);
  }
  Pty(const Pty&) = delete;
  Pty& operator=(const Pty&) = delete;

  std::string read_all() const { return drain(screen); }

  static std::string drain(int fd) {
    std::string text;
    std::array<char, 4096> buffer{};
    for (ssize_t n = 0; (n = ::read(fd, buffer.data(), buffer.size())) > 0;) {
      text.append(buffer.data(), static_cast<std::size_t>(n));
    }
    return text;
  }

  int screen = -1;
  int terminal = -1;
};

// The process's handling of SIGPIPE is another thread's too.
TEST(WriteIfRead, ABrokenPipeIsIgnoredWithoutAnotherSignalHandler) {
  static int caught = 0;
  struct sigaction mine {};
  mine.sa_sigaction = [](int, siginfo_t*, void*) { ++caught; };
  mine.sa_flags = SA_SIGINFO;
  struct sigaction before {};
  ASSERT_EQ(::sigaction(SIGPIPE, &mine, &before), 0);
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  ::close(ends[0]);
  write_message(ends[1], "to nobody");
  ::close(ends[1]);
  struct sigaction after {};
  ASSERT_EQ(::sigaction(SIGPIPE, &before, &after), 0);
  EXPECT_EQ(after.sa_flags & SA_SIGINFO, SA_SIGINFO);  // std::signal() would have dropped it
  EXPECT_EQ(caught, 0);
  sigset_t left;
  ::sigpending(&left);
  EXPECT_EQ(sigismember(&left, SIGPIPE), 0);
  ::pthread_sigmask(SIG_BLOCK, nullptr, &left);
  EXPECT_EQ(sigismember(&left, SIGPIPE), 0);
}

TEST(ProgressLine, CountsTimeAndTimeLeft) {
  EXPECT_EQ(progress_line("replay", "rows", {3456, 28800, 180.0}),
            "kvbench: replay: 12%, 3456 of 28800 rows, 3 min, 22 min left");
  // What an earlier run did took this one no time.
  EXPECT_EQ(progress_line("replay", "rows", {3456, 28800, 180.0, 3000}),
            "kvbench: replay: 12%, 3456 of 28800 rows, 3 min, 2.8 h left");
  EXPECT_EQ(progress_line("replay", "rows", {100, 200, 59.0, 100}),
            "kvbench: replay: 50%, 100 of 200 rows, 59 s");
  EXPECT_EQ(progress_line("replay", "rows", {199, 200, 1000000.0}),
            "kvbench: replay: 99%, 199 of 200 rows, 11.6 d, 84 min left");
}

TEST(Progress, DrawsAndClearsAtATerminal) {
  ::setenv("TERM", "xterm", 1);
  for (const unsigned width : {1U, 2U, 30U, 200U}) {
    const Pty pty(static_cast<unsigned short>(width));
    if (pty.terminal < 0) {
      GTEST_SKIP() << "no pseudo terminal here";
    }
    {
      Progress progress(10, "replay", "rows", pty.terminal, std::chrono::seconds{0});
      progress.tick(3);
    }
    const std::string line = "kvbench: replay: 30%, 3 of 10 rows, 0 s, 0 s left";
    const std::string clear = "\r\x1b[2K";
    EXPECT_EQ(pty.read_all(), clear + line.substr(0, width - 1) + clear);
  }
}

TEST(Progress, PrintsPlainLinesIntoAPipe) {
  std::array<int, 2> fds{};
  ASSERT_EQ(::pipe(fds.data()), 0);
  {
    Progress progress(10, "replay", "rows", fds[1], std::chrono::seconds{0});  // at every tick
    progress.skip(4);
    progress.tick(2);
    progress.tick();
  }
  ::close(fds[1]);
  const std::string text = Pty::drain(fds[0]);
  ::close(fds[0]);
  EXPECT_EQ(text.find("\x1b"), std::string::npos);
  std::istringstream lines(text);
  std::string line;
  for (const char* begin :
       {"kvbench: replay: 60%, 6 of 10 rows, 0 s", "kvbench: replay: 70%, 7 of 10 rows, 0 s",
        "kvbench: replay: 70%, 7 of 10 rows, 0 s"}) {  // the last one at the end
    ASSERT_TRUE(std::getline(lines, line)) << text;
    EXPECT_TRUE(line.starts_with(begin)) << line;
  }
  EXPECT_FALSE(std::getline(lines, line)) << text;
}

TEST(Progress, APipeThatNobodyReadsDoesNotEndTheRun) {
  std::array<int, 2> fds{};
  ASSERT_EQ(::pipe(fds.data()), 0);
  ::close(fds[0]);
  { Progress(10, "replay", "rows", fds[1], std::chrono::seconds{0}).tick(10); }
  ::close(fds[1]);
}

TEST(Progress, SilentInAPipeBeforeTheFirstMinute) {
  std::array<int, 2> fds{};
  ASSERT_EQ(::pipe(fds.data()), 0);
  {
    Progress progress(10, "replay", "rows", fds[1]);
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&progress] {
        for (int i = 0; i < 1000; ++i) {
          progress.tick();
        }
      });
    }
  }
  ::close(fds[1]);
  EXPECT_EQ(Pty::drain(fds[0]), "");
  ::close(fds[0]);
}

}  // namespace
}  // namespace kvbench::test_progress
