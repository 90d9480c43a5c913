"""Questions over many predictions, a module for each verb."""
