"""A fork server: one process that has loaded everything forks the shims of runs for whoever starts a run.

The **zygote** (`zygote_server.py`) is the fork server's process. There is one for each installation and each
set of attributes that a child cannot take over from its starter: rights, limits, control group, namespaces
(`zygote_protocol.py: zygote_name`). An installation has at most three. A **starter** is a process that starts
a run (`zygote_client.py`). A **child** is a fork of the zygote that becomes the program of an order.

One connection is one order. The zygote accepts it and forks; it reads nothing itself:

    starter                        zygote                  child
       | connect --------------------> accept, fork
       | secret ----------------------------------------------> |
       |                                                        | 1. compare the secret
       |                                                        | 2. compare the peer's attributes
       | <------------------------------------------------ here |
       | order, with descriptors -----------------------------> |
       |                                                        | 3. compare namespaces and root directory
       |                                                        | 4. is the peer still the same process?
       |                                                        | 5. take descriptors, umask, variables
       | <----------------------------------------------- ready |
       | 6. are the files still those of the name?              |
       | go --------------------------------------------------> |
       | close                                                  | 7. call the program, exit with its code

Why four messages. The order comes only after `here`: the descriptors that come with it are locks too, and a
zygote that hangs would hold them. The program begins only after `go`: so it is started once or not at all.

Who may die when:

- the zygote, at any time: a child that has its connection goes on; else the starter reads the end of the
  connection and starts the program plainly;
- the child, before it has `go`: the starter reads the end of the connection, and starts plainly;
- the starter, before it has sent `go`: the child reads the end of the connection, closes everything that
  came with the order, and exits with `EXIT_NEVER_BEGUN`;
- both, in any order, once `go` is sent: the program runs by itself.

Nothing depends on the zygote: every failure here ends in the plain start, within a bound. While it loads, its
socket has another name. Starters do not see that one; a shim that was started plainly does, and waits there,
which costs less than its own start and lets the zygote have the processor (`process/shim.py`).
Only Linux. Standard library and `run` alone.
"""
