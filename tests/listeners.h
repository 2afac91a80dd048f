// Finds the listeners of a process of this machine and connects to them as an unauthenticated peer.
#pragma once

#include <netinet/in.h>
#include <sys/types.h>

#include <string>
#include <vector>

namespace muster {

// Returns the IPv4 addresses of its listening TCP sockets, including IPv4-mapped IPv6 ones.
std::vector<sockaddr_in> Listeners(pid_t pid);

// Returns its listening TCP sockets that other hosts can reach: neither on 127.0.0.0/8 nor on ::1.
// Format: "ADDRESS:PORT" of /proc/net/tcp and tcp6, in hexadecimal.
std::vector<std::string> ListenersBeyondLoopback(pid_t pid);

// Returns a connected socket with a timeout of this many seconds in both directions, or -1 if no
// process accepts.
int ConnectTo(const sockaddr_in& address, int seconds = 5);

// Sends all bytes. Stops early if the peer closes the connection or takes nothing for the timeout.
void SendAll(int socket, const std::string& bytes);

// Connects, sends and closes. Returns false if no process accepts the connection.
bool SendBytes(const sockaddr_in& address, const std::string& bytes);

}  // namespace muster
