/* Calls the C interface from C99, without a server and with none. Prints what went wrong. */
#include <rcverbs/rcverbs.h>

#include <stdio.h>
#include <string.h>

int main(void) {
    rcverbs_error why;
    rcverbs_client *client = NULL;
    rcverbs_session *session = NULL;
    rcverbs_request ask;
    rcverbs_reply reply;
    if (strncmp(rcverbs_version(), "0.", 2) != 0) return 1;
    if (rcverbs_client_open("not an address", 7471, NULL, &client, &why) == 0 || client != NULL) return 2;
    if (rcverbs_client_open("127.0.0.1", 7471, NULL, &client, &why) != 0) return 3;
    memset(&ask, 0, sizeof ask);
    ask.operation = 1;
    ask.timeout_ms = 100;
    if (rcverbs_client_request(client, &ask, &reply, &why) == 0) return 4;
    if ((why.conditions & (RCVERBS_TRANSIENT | RCVERBS_TIMED_OUT)) == 0) return 5;
    rcverbs_client_stop(client);
    rcverbs_client_free(client);
    if (rcverbs_session_connect("127.0.0.1", 7471, NULL, 1000, &session, &why) == 0 || why.message[0] == 0) return 6;
    rcverbs_session_free(session);
    return 0;
}
