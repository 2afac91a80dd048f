// A program that tests/hardening_test.cc must reject: its BUILD target disables all hardening.
#include <cstdio>
#include <cstring>

int main(int argc, char** argv) {
  char copy[64];
  std::strcpy(copy, argv[argc - 1]);  // with FORTIFY it would be __strcpy_chk, followed by a canary
  return std::puts(copy) < 0 ? 1 : 0;
}
