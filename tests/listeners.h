// Where a process of this machine listens, and how strangers knock there.
#pragma once

#include <netinet/in.h>
#include <sys/types.h>

#include <string>
#include <vector>

namespace muster {

// IPv4 addresses of its listening TCP sockets, those of IPv6 that hold one among them.
std::vector<sockaddr_in> Listeners(pid_t pid);

// Of its listening TCP sockets those that can be reached from beyond this host: neither on
// 127.0.0.0/8 nor on ::1. As "ADDRESS:PORT" of /proc/net/tcp and tcp6, in hexadecimal.
std::vector<std::string> ListenersBeyondLoopback(pid_t pid);

// A connected socket with a patience of so many seconds in both directions; -1: nobody accepts.
int ConnectTo(const sockaddr_in& address, int seconds = 5);

// Sends until the peer does not want any more.
void SendAll(int socket, const std::string& bytes);

// Connects, sends and closes. False when nobody accepts the connection.
bool SendBytes(const sockaddr_in& address, const std::string& bytes);

}  // namespace muster
