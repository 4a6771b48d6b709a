"""A generic fork server: one process that has loaded everything forks the programs that others ask for.

It knows no runs. The **zygote** is the fork server's process (`server.py`), one for each user, installation
and version (`installation.py`). A **starter** is a process that wants a program started (`starter.py`, and
`front.py` for a whole command). A **child** is a fork that becomes this program (`child.py`).

One connection is one order. The zygote accepts it and hands it to a child, which was forked before
(`prefork.py`) or is forked now. The zygote itself reads nothing. Then starter and child exchange, by the
words of `protocol.py`:

    starter                        zygote                  child
       | connect --------------------> accept
       | secret -------------------------- connection ------> |
       |                                                      | 1. compare the secret
       |                                                      | 2. compare the peer's rights (`peer.py`)
       | <---------------------------------------------- here |
       | order, with descriptors ---------------------------> |
       |                                                      | 3. compare namespaces and root directory
       |                                                      | 4. is the peer still the same process?
       |                                                      | 5. inherit: directory, descriptors, umask,
       |                                                      |    limits, signals, variables, ...
       | <------------------------------ ready, with a pidfd  |
       | 6. are the files still those of the key?             |
       | go ------------------------------------------------> |
       | close                                                | 7. close both lines: the zygote notices, and
       |                                                      |    forks the child for the next starter
       |                                                      | 8. call the program, exit with its code

Why four messages. The order comes only after `here`: the descriptors that come with it are locks too, and a
zygote that hangs would hold them. The program begins only after `go`: so it is started once or not at all.

Who may die when:

- the zygote, at any time: a child that has its connection goes on; else the starter reads the end of the
  connection and starts the program plainly;
- the child, before it has `go`: the starter reads the end of the connection, and starts plainly;
- the starter, before it has sent `go`: the child reads the end of the connection, closes everything that
  came with the order, and exits with `EXIT_NEVER_BEGUN`;
- both, in any order, once `go` is sent: the program runs by itself, unless a `Front` stands for it.

Nothing depends on the zygote: every failure here ends in the plain start, within a bound.
Only Linux. Imports `host`, `domain` and the standard library.
"""
