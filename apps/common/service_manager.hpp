// service_manager.hpp — tells the service manager that started a program, such as systemd, how it is.
//
// Without one (no NOTIFY_SOCKET in the environment), these functions do nothing. Source: sd_notify(3).
#pragma once

namespace demo {

/// The program serves.
void notify_ready() noexcept;
/// It has begun to read its configuration again; notify_ready() ends that.
void notify_reloading() noexcept;
/// It has begun to end.
void notify_stopping() noexcept;

}  // namespace demo
