#include <cstdlib>

#include "cli/commands/session.h"
#include "cli/framework/interrupt.h"
#include "glog/logging.h"
#include "lib/security/core_dumps.h"

int main(int argc, char** argv) {
  muster::cli::Interrupt interrupt;  // before any other thread: it blocks signals
  FLAGS_logtostderr = true;
  // Informational lines, such as the chosen kernels, appear only on request (GLOG_minloglevel=0).
  if (std::getenv("GLOG_minloglevel") == nullptr) FLAGS_minloglevel = google::GLOG_WARNING;
  google::InitGoogleLogging(argv[0]);
  muster::ForbidCoreDumps();  // memory may hold the user's tokens and keys
  muster::cli::Session session;
  session.interrupt = &interrupt;
  return muster::cli::RunCommandLine(argc, argv, session);
}
