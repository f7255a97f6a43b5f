// Exit codes of docs/cli.md, and the way a subcommand asks for one that is no error.
#pragma once

namespace kvbench {

enum ExitCode {
  kExitOk = 0,
  kExitFailedRows = 1,
  kExitBadInput = 2,
  kExitIo = 3,
  kExitInterrupted = 130,
};

/// Thrown by a subcommand that has said all there is to say.
struct Exit {
  int code;
};

}  // namespace kvbench
