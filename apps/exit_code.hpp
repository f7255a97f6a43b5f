// Exit codes (docs/cli.md).
#pragma once

namespace kvbench {

enum ExitCode {
  kExitOk = 0,
  kExitFailedRows = 1,
  kExitBadInput = 2,
  kExitIo = 3,
  kExitInterrupted = 130,
};

/// Ends the program with `code`. Thrown by a subcommand that has printed its message.
struct Exit {
  int code;
};

}  // namespace kvbench
